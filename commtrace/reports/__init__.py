"""Reports. A format is one file in ``formats``, found by being there.

Its name is the file's; ``SUFFIX`` is what the files that it writes end in, and
``render(analysis, look) -> str`` writes an analysis down. What it says is in ``content``.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["FORMATS", "Format", "Look", "format_named", "format_of_file"]

FORMATS = tuple(
    sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / "formats")]))
)
"""The names of all formats. Finding them imports none."""


@dataclass(frozen=True)
class Look:
    """How a report is to look; a format takes what concerns it.

    ``width`` is in characters; ``operations`` asks for every matched operation.
    """

    width: int = 80
    color: bool = False
    operations: bool = False


class Format(Protocol):
    """What a file in ``formats`` holds."""

    SUFFIX: str

    def render(self, analysis: Analysis, look: Look = ...) -> str:
        """The analysis, written down."""


def format_named(name: str) -> Format:
    """The format of a name, one of FORMATS."""
    return cast("Format", import_module(f"{__name__}.formats.{name}"))


def format_of_file(file: Path) -> str | None:
    """The name of the format that the end of a file's name says; None if it says none."""
    return next((n for n in FORMATS if file.name.endswith(format_named(n).SUFFIX)), None)
