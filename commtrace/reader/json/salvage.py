"""Events one by one, from text that is not JSON as a whole.

Slower than decoding a block at once, and used where that has failed, and for the last
event of a file, which ends nobody knows where.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

__all__ = ["BROKEN", "Salvaged", "Text", "salvage"]

T = TypeVar("T")

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be."""

# Numbers are not looked at, and Python refuses, or takes long over, an int of many digits.
_scan = json.JSONDecoder(strict=False, parse_int=float).raw_decode
_BETWEEN = re.compile(r"[\s,]*")
_OPENING = re.compile(r'\{\s*"(ph"\s*:)?')
_CUT = re.compile(r"[-+.\\\w]{0,9}\Z")  # a word, a number or an escape that the text's end cuts
_STRADDLE = 256  # an opening may begin in one text and end in the next
_CLOSING = re.compile(r'(?<=\})\s*\](?=\s*(?:,\s*"|\}?\s*\Z))')
# Of repairs, which few files need: compiled with the first.
_STRING_OR_BARE = r'(?s)"(?:[^"\\]|\\.)*(?:"|\Z)|(?<![\w.])[-+]?(?:NaN|Infinity|nan|inf)\b'
_NAME = r'(?s)("name"\s*:\s*")(.{0,2000}?)("\s*,\s*"(?:ph|cat|pid|tid|ts)"\s*:)'
_QUOTE = r'(?<!\\)"'
_UNFIT = r"[\x00-\x1f]|\\u[dD][89a-fA-F]..(?:\\u[dD][c-fC-F]..)?"

_BRACE = re.compile(r"[\[{]")
_DEEPEST = 900  # levels: what Python's decoder reads at least
_NESTED = 16
_NOWHERE = sys.maxsize


class Text(str):
    """Text of which json does not count the lines up to each error.

    Where there are many, time would grow with the square of the text.
    """

    __slots__ = ()

    def count(self, *_: object) -> int:
        """No lines."""
        return 0

    def rfind(self, *_: object) -> int:
        """No line's beginning."""
        return 0


class _Value(Struct, frozen=True):
    """Where a value ends, or its beginning; whether it breaks off; where it is broken.

    ``deep``: it is nested too deeply to be read at all.
    """

    end: int
    incomplete: bool = False
    broken_at: int = -1
    deep: bool = False


class Salvaged(Struct, Generic[T]):
    """What could be read.

    ``rest`` is what follows the list of events where it ``ended``; else what may be the
    beginning of an event that is still incomplete. ``unfit`` counts what has an event's
    shape but not its types, ``reason`` the first of them; ``repaired`` events that became
    valid by little; ``damaged`` the places that are not JSON and ``lost`` their bytes.
    ``hopeless``: reading was given up for their number.
    """

    events: list[T] = []
    rest: bytes = b""
    ended: bool = False
    unfit: int = 0
    reason: str | None = None
    repaired: int = 0
    damaged: int = 0
    lost: int = 0
    hopeless: bool = False

    @property
    def failures(self) -> int:
        """How many places hold no event."""
        return self.damaged + self.unfit


def salvage(
    text: bytes, decoder: msgspec.json.Decoder[T], final: bool, patience: int
) -> Salvaged[T]:
    """Read what can be read of ``text``, which begins at or between events.

    Unless this is the ``final`` text, an event that could still go on is left in ``rest``.
    ``patience`` is how many more failures than ten for each event are borne.
    """
    found: Salvaged[T] = Salvaged()
    string = Text(text.decode("utf-8", "surrogateescape"))
    places = _Places(string, final)
    at = 0
    while True:
        at = _end(_BETWEEN.match(string, at), at)
        if at == len(string):
            return found
        if found.failures > patience + 10 * len(found.events):
            found.hopeless = True
            return found
        if string[at] == "]":
            found.ended = True
            found.rest = _bytes(string[at + 1 :])
            return found
        value = _value(string, at)
        if value.end > at:
            _keep(found, string[at : value.end], decoder)
            at = value.end
            continue
        if value.incomplete and not final:
            found.rest = _bytes(string[at:])
            return found
        resume = places.behind(at, value)
        if resume is None:
            keep = at if final else max(at + 1, len(string) - _STRADDLE)
            if keep > at:
                _rescue(found, string[at:keep], decoder, value)
            found.rest = _bytes(string[keep:])
            return found
        _rescue(found, string[at:resume], decoder, value)
        at = resume


class _Places:
    """Where to go on after damage: the next event, or in the final text the list's end."""

    def __init__(self, string: str, final: bool) -> None:
        self._string = string
        self._openings = self._found(_OPENING)
        self._closings = self._found(_CLOSING) if final else iter(())
        self._opening, self._closing = -1, -1
        self._broken_at = -1  # the furthest
        self._within = 0

    def behind(self, at: int, value: _Value) -> int | None:
        """The next place behind one where a broken value began.

        What is nested in it is tried some times only, since most of it breaks there, too:
        time would grow with the square of the depth.
        """
        self._within = self._within + 1 if at <= self._broken_at else 0
        self._broken_at = max(self._broken_at, value.broken_at)
        nested = self._within < _NESTED and not value.deep
        after = at if nested else max(at, value.broken_at)
        self._opening = _beyond(self._openings, self._opening, after)
        self._closing = _beyond(self._closings, self._closing, after)
        nearest = min(self._opening, self._closing)
        return None if nearest == _NOWHERE else nearest

    def _found(self, pattern: re.Pattern[str]) -> Iterator[int]:
        for found in pattern.finditer(self._string):
            before = _before(self._string, found.start())
            if before == "}" or (pattern is _OPENING and (found[1] or before == ",")):
                yield found.start()


def _beyond(places: Iterator[int], current: int, at: int) -> int:
    """The first of the places behind one, given the last that was looked at."""
    while current <= at:
        current = next(places, _NOWHERE)
    return current


def _before(string: str, at: int) -> str:
    """The last character before a place that is not blank."""
    while at and string[at - 1] in " \t\r\n":
        at -= 1
    return string[at - 1 : at]


def _end(match: re.Match[str] | None, default: int) -> int:
    return match.end() if match else default


def _bytes(string: str) -> bytes:
    return string.encode("utf-8", "surrogateescape")


def _value(string: str, at: int) -> _Value:
    """The value that begins here, if one does."""
    try:
        return _Value(_scan(string, at)[1])
    except json.JSONDecodeError as error:
        incomplete = bool(_CUT.match(string, error.pos)) or error.msg.startswith("Unterminated")
        return _Value(at, incomplete, error.pos)
    except RecursionError:
        deep = islice(_BRACE.finditer(string, at), _DEEPEST)
        return _Value(at, broken_at=deque(deep, maxlen=1)[0].start(), deep=True)


def _keep(found: Salvaged[T], event: str, decoder: msgspec.json.Decoder[T]) -> None:
    try:
        _decode(found, event, decoder)
    except BROKEN as error:
        found.unfit += 1
        found.reason = found.reason or str(error)


def _rescue(
    found: Salvaged[T], event: str, decoder: msgspec.json.Decoder[T], value: _Value
) -> None:
    # Not JSON, but it may be for no more than a bare nan, which ends the text early here.
    try:
        if not value.deep:
            _decode(found, event.rstrip(" \t\r\n,"), decoder)
            return
    except BROKEN:
        pass
    found.damaged += 1
    found.lost += len(_bytes(event))


def _decode(found: Salvaged[T], event: str, decoder: msgspec.json.Decoder[T]) -> None:
    try:
        found.events.append(decoder.decode(_bytes(event)))
    except BROKEN:
        found.events.append(decoder.decode(_repaired(event)))
        found.repaired += 1


def _repaired(event: str) -> bytes:
    """JSON again: no NaN, no control characters or half characters in strings.

    Nor quotes in a name: Kineto does not escape those of a label.
    """
    event = _bytes(event).decode("utf-8", "replace")
    event = re.sub(_NAME, lambda m: m[1] + re.sub(_QUOTE, r'\\"', m[2]) + m[3], event)
    return re.sub(_STRING_OR_BARE, _valid, event).encode()


def _valid(token: re.Match[str]) -> str:
    text = token.group()
    return re.sub(_UNFIT, _escaped, text) if text.startswith('"') else "null"


def _escaped(unfit: re.Match[str]) -> str:
    text = unfit.group()
    if len(text) == 1:
        return f"\\u{ord(text):04x}"
    return text if len(text) == 12 and text[2:4].lower() < "dc" else "\\ufffd"
