"""How one file lays its events out, learned from the first of them.

Kineto has changed its line breaks over the years, and other tools rewrite its files on
one line. What separates two events is the same throughout a file. That is enough to find
where events end.
"""

from __future__ import annotations

import json
import re

from msgspec import Struct

__all__ = ["Layout", "learn"]

_FOLLOW = re.compile(rb"\s*,\s*\{")
_LINE = re.compile(rb"\r?\n[ \t]*\Z")
_GUESS = re.compile(rb'((?:\r?\n[ \t]*)?)\}(\s*,\s*\{)\s*"ph"')

_scan = json.JSONDecoder(parse_int=float).raw_decode


class Layout(Struct, frozen=True):
    """The texts that stand around events.

    ``indent`` is the line break before an event's closing brace, ``follow`` what comes
    after it up to the next event's opening brace.
    """

    indent: bytes
    follow: bytes

    @property
    def separator(self) -> bytes:
        """What stands between the insides of two events."""
        return self.indent + b"}" + self.follow


def learn(text: bytes) -> Layout | None:
    """The layout of events, of which ``text`` is the beginning; None if it does not show."""
    indent_follow = _first_gap(text) or _guessed_gap(text)
    return Layout(*indent_follow) if indent_follow else None


def _first_gap(text: bytes) -> tuple[bytes, bytes] | None:
    try:
        _, end = _scan(text.decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    follow = _FOLLOW.match(text, end)
    if follow is None:
        return None
    indent = _LINE.search(text, 0, end - 1)
    return indent.group() if indent else b"", follow.group()


def _guessed_gap(text: bytes) -> tuple[bytes, bytes] | None:
    # The first event is damaged, or one of a kind: any gap before a "ph" will do.
    gap = _GUESS.search(text)
    return (gap.group(1), gap.group(2)) if gap else None
