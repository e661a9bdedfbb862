"""Paragraphs, as wide as there is room."""

from __future__ import annotations

import re
import textwrap

__all__ = ["wrapped"]

# Never torn apart: a number and its unit, a rank and its number, an arrow and its first word.
_TOGETHER = re.compile(r"(?<=\d) (?=[\w%])|(?<=rank) (?=\d)|(?<=→) |(?<=:\d) (?=→)| (?=·)")
_GLUE = "\u00a0"  # textwrap breaks no line there


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """A paragraph whose first line begins with one text, and all others with another.

    >>> print(wrapped("waits for 12.5 ms in all", 16, "1. ", "   "))
    1. waits for
       12.5 ms in
       all
    """
    lines = textwrap.wrap(
        _TOGETHER.sub(_GLUE, text),
        max(width, len(rest) + 1),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_GLUE, " ") or first
