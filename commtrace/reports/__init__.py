"""Reports. A format is one file in ``formats``, found by being there.

Its name is the file's; ``SUFFIX`` is what the files that it writes end in, and
``render(analysis, look) -> str`` writes an analysis down. What it says is in ``content``.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["FORMATS", "Format", "Formats", "Look"]


@dataclass(frozen=True)
class Look:
    """How a report is to look; a format takes what concerns it.

    ``width`` is in characters; ``operations`` asks for every matched operation.
    """

    width: int = 80
    color: bool = False
    operations: bool = False


class HasSuffix(Protocol):
    """What the file of any format holds."""

    @property
    def SUFFIX(self) -> str | None:  # noqa: N802 - a constant of a module
        """What the files that it writes end in; None if it is no file's."""


class Format(HasSuffix, Protocol):
    """What a file in ``formats`` holds."""

    SUFFIX: str

    def render(self, analysis: Analysis, look: Look = ...) -> str:
        """The analysis, written down."""


_SUFFIX = re.compile(r'^SUFFIX = "(.+)"$', re.M)
F = TypeVar("F", bound=HasSuffix)


@dataclass(frozen=True)
class Formats(Generic[F]):
    """The formats of one package: a file each, imported when it is asked for."""

    package: str
    names: tuple[str, ...]

    def named(self, name: str) -> F:
        """The format of a name, one of ``names``."""
        return cast("F", import_module(f"{self.package}.{name}"))

    def of_file(self, file: Path) -> str | None:
        """The name of the format that the end of a file's name says; None if it says none."""
        return next((name for name, its in self._endings() if file.name.endswith(its)), None)

    def suffixes(self) -> tuple[str, ...]:
        """What files of these formats end in."""
        return tuple(its for _, its in self._endings())

    def _endings(self) -> list[tuple[str, str]]:
        # A format loads what it is made from, pandas above all: its file is read instead.
        files = ((name, find_spec(f"{self.package}.{name}")) for name in self.names)
        lines = (
            (name, _SUFFIX.search(Path(spec.origin).read_text(encoding="utf-8")))
            for name, spec in files
            if spec is not None and spec.origin is not None
        )
        return [(name, line[1]) for name, line in lines if line]


FORMATS: Formats[Format] = Formats(
    f"{__name__}.formats",
    tuple(
        sorted(its.name for its in pkgutil.iter_modules([str(Path(__file__).parent / "formats")]))
    ),
)
"""Those of an analysis."""
