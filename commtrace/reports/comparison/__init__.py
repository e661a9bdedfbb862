"""Reports of a comparison. A format is one file in this folder, found by being there.

Its ``SUFFIX`` is what the files that it writes end in, None if it is no file's, and
``render(compared, gate, look) -> str`` writes a comparison down. What it says is in
``content.comparison``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from commtrace.reports import Look

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared
    from commtrace.comparing.gate import Gate

__all__ = ["FORMATS", "Format", "format_named", "format_of_file"]

FORMATS = ("text", "json", "markdown", "html", "github", "junit")


class Format(Protocol):
    """What a file in this folder holds."""

    SUFFIX: str | None

    def render(self, compared: Compared, gate: Gate = ..., look: Look = ...) -> str:
        """The comparison, written down."""


def format_named(name: str) -> Format:
    """The format of a name, one of FORMATS."""
    return cast("Format", import_module(f"{__name__}.{name}"))


def format_of_file(file: Path) -> str | None:
    """The name of the format that the end of a file's name says; None if it says none."""
    suffixes = ((name, format_named(name).SUFFIX) for name in FORMATS)
    return next((name for name, its in suffixes if its and file.name.endswith(its)), None)
