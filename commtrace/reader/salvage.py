"""Events one by one, from text that is not JSON as a whole.

Slower than decoding a block at once, and used where that has failed, and for the last
event of a file, which ends nobody knows where.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

__all__ = ["BROKEN", "Salvaged", "salvage"]

T = TypeVar("T")

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be."""

_scan = json.JSONDecoder(strict=False).raw_decode
_BETWEEN = re.compile(r"[\s,]*")
_OPENING = re.compile(r'\{\s*"(ph"\s*:)?')
_CUT = re.compile(r"[-+.\\\w]{0,9}\Z")  # a word, a number or an escape that the text's end cuts
_STRADDLE = 256  # an opening may begin in one text and end in the next
_CLOSING = re.compile(r'(?<=\})\s*\](?=\s*(?:,\s*"|\}?\s*\Z))')
_STRING_OR_BARE = re.compile(
    r'"(?:[^"\\]|\\.)*(?:"|\Z)|(?<![\w.])[-+]?(?:NaN|Infinity|nan|inf)\b', re.DOTALL
)
_NAME = re.compile(r'("name"\s*:\s*")(.{0,2000}?)("\s*,\s*"(?:ph|cat|pid|tid|ts)"\s*:)', re.DOTALL)
_QUOTE = re.compile(r'(?<!\\)"')
_UNFIT = re.compile(r"[\x00-\x1f]|\\u[dD][89a-fA-F]..(?:\\u[dD][c-fC-F]..)?")


@dataclass
class Salvaged(Generic[T]):
    """What could be read.

    ``rest`` is what follows the list of events where it ``ended``; else what may be the
    beginning of an event that is still incomplete. ``unfit`` counts what has an event's
    shape but not its types, ``reason`` the first of them; ``repaired`` events that became
    valid by little; ``damaged`` the places that are not JSON and ``lost`` their bytes.
    """

    events: list[T] = field(default_factory=list)
    rest: bytes = b""
    ended: bool = False
    unfit: int = 0
    reason: str | None = None
    repaired: int = 0
    damaged: int = 0
    lost: int = 0


def salvage(text: bytes, decoder: msgspec.json.Decoder[T], final: bool) -> Salvaged[T]:
    """Read what can be read of ``text``, which begins at or between events.

    Unless this is the ``final`` text, an event that could still go on is left in ``rest``.
    """
    found: Salvaged[T] = Salvaged()
    string = text.decode("utf-8", "surrogateescape")
    at = 0
    while True:
        at = _end(_BETWEEN.match(string, at), at)
        if at == len(string):
            return found
        if string[at] == "]":
            found.ended = True
            found.rest = _bytes(string[at + 1 :])
            return found
        end, incomplete = _value_end(string, at)
        if end > at:
            _keep(found, string[at:end], decoder)
            at = end
            continue
        if incomplete and not final:
            found.rest = _bytes(string[at:])
            return found
        resume = _resume(string, at, final)
        if resume is None:
            keep = at if final else max(at + 1, len(string) - _STRADDLE)
            if keep > at:
                _rescue(found, string[at:keep], decoder)
            found.rest = _bytes(string[keep:])
            return found
        _rescue(found, string[at:resume], decoder)
        at = resume


def _resume(string: str, at: int, final: bool) -> int | None:
    """Where to go on after damage: the next event, or in the final text the list's end."""
    openings = (
        found.start()
        for found in _OPENING.finditer(string, at + 1)
        if found[1] or _before(string, found.start()) in (",", "}")
    )
    closings = (
        found.start()
        for found in _CLOSING.finditer(string, at + 1)
        if _before(string, found.start()) == "}"
    )
    places = [next(openings, None), next(closings, None) if final else None]
    return min((place for place in places if place is not None), default=None)


def _before(string: str, at: int) -> str:
    """The last character before a place that is not blank."""
    while at and string[at - 1] in " \t\r\n":
        at -= 1
    return string[at - 1 : at]


def _end(match: re.Match[str] | None, default: int) -> int:
    return match.end() if match else default


def _bytes(string: str) -> bytes:
    return string.encode("utf-8", "surrogateescape")


def _value_end(string: str, at: int) -> tuple[int, bool]:
    """Where the value ends that begins here, or here; and whether it breaks off."""
    try:
        return _scan(string, at)[1], False
    except json.JSONDecodeError as error:
        return at, bool(_CUT.match(string, error.pos)) or error.msg.startswith("Unterminated")
    except (ValueError, RecursionError):
        return at, False


def _keep(found: Salvaged[T], event: str, decoder: msgspec.json.Decoder[T]) -> None:
    try:
        _decode(found, event, decoder)
    except BROKEN as error:
        found.unfit += 1
        found.reason = found.reason or str(error)


def _rescue(found: Salvaged[T], event: str, decoder: msgspec.json.Decoder[T]) -> None:
    # Not JSON, but it may be for no more than a bare nan, which ends the text early here.
    try:
        _decode(found, event.rstrip(" \t\r\n,"), decoder)
    except BROKEN:
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
    event = _NAME.sub(lambda m: m[1] + _QUOTE.sub(r'\\"', m[2]) + m[3], event)
    return _STRING_OR_BARE.sub(_valid, event).encode()


def _valid(token: re.Match[str]) -> str:
    text = token.group()
    return _UNFIT.sub(_escaped, text) if text.startswith('"') else "null"


def _escaped(unfit: re.Match[str]) -> str:
    text = unfit.group()
    if len(text) == 1:
        return f"\\u{ord(text):04x}"
    return text if len(text) == 12 and text[2:4].lower() < "dc" else "\\ufffd"
