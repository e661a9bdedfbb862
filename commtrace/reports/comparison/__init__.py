"""Reports of a comparison. A format is one file in this folder, found by being there.

Its ``SUFFIX`` is what the files that it writes end in, None if it is no file's, and
``render(compared, gate, look) -> str`` writes a comparison down. What it says is in
``content.comparison``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from commtrace.reports import Formats, HasSuffix, Look

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared
    from commtrace.comparing.gate import Gate

__all__ = ["FORMATS", "Format"]


class Format(HasSuffix, Protocol):
    """What a file in this folder holds."""

    def render(self, compared: Compared, gate: Gate = ..., look: Look = ...) -> str:
        """The comparison, written down."""


FORMATS: Formats[Format] = Formats(
    __name__, ("text", "json", "markdown", "html", "github", "junit")
)
"""Those of a comparison; ``notebook`` is no file's."""
