"""What the commands that write a report take: where to, in which format, and how to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commtrace.errors import UsageError
from commtrace.reports import Formats

__all__ = ["Workers", "format_of", "format_option", "output_option"]

Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Processes that read files; default: one per CPU core."),
]


def output_option(more: str = "") -> Any:
    """``-o``; ``more`` is what else there is to say of it."""
    about = "Write the report to this file, in its ending's format; default: print it."
    return typer.Option("-o", "--output", metavar="FILE", help=f"{about}{more}")


def format_option(formats: Formats[Any]) -> Any:
    """``--format``: one of these."""

    def listed(name: str | None) -> str | None:
        if name is None or name in formats.names:
            return name
        raise typer.BadParameter(f"{name!r} is none of {', '.join(formats.names)}")

    return typer.Option(
        "--format",
        metavar=f"[{'|'.join(formats.names)}]",
        callback=listed,
        autocompletion=lambda: list(formats.names),
        help="The report's format; default: by the ending of --output, else text.",
    )


def format_of(output: Path | None, formats: Formats[Any], *others: str) -> str:
    """The format that a file's name asks for. UsageError names its endings, and the ``others``."""
    if output is None:
        return "text"
    if (name := formats.of_file(output)) is None:
        known = ", ".join((*formats.suffixes(), *others))
        raise UsageError(f"{output}: end its name in one of {known}, or choose one with --format")
    return name
