"""``commtrace plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commtrace.cli.streams import reading, write
from commtrace.errors import UsageError
from commtrace.plots.image import SUFFIXES, image
from commtrace.plots.of_run import NAMES

__all__ = ["plot"]


def plot(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A trace file, a folder of one run's, or a glob."),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", autocompletion=lambda: list(NAMES), help=f"One of {', '.join(NAMES)}."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The picture: ends in .png, .svg or .pdf."
        ),
    ],
) -> None:
    """Draw one picture of a run."""
    picture = name.replace("-", "_")
    if picture not in NAMES:
        raise UsageError(f"{name}: there is no such picture; there are {', '.join(NAMES)}")
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{output}: end its name in one of {', '.join(SUFFIXES)}")
    from commtrace.run import load

    with reading() as shown:
        run = load(path, read_bytes=shown)
    write(output, image(run.plot, picture, suffix))
