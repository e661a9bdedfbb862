"""Which messages a program has called for, at which lines: gloo's recorder keeps none."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from itertools import count
from types import CodeType, FrameType
from typing import Any

from commtrace.record.call_site import call_site, is_own

__all__ = ["came_from", "entries", "note"]

_MOST = 20_000  # as many operations as the flight recorder keeps

# What calls have in common is kept once, by what is compared fast, so that nothing is made for each
# message that Python's garbage collector would have to look at.
_kinds: dict[tuple[str | int, ...], int] = {}
_described: dict[int, dict[str, Any]] = {}
_numbers = count()
_codes: dict[int, tuple[CodeType, bool]] = {}  # by id; whether it is a function of the program's
_noted: deque[int] = deque(maxlen=_MOST)
_times_ns: deque[int] = deque(maxlen=_MOST)
_sources: dict[int, int] = {}  # global ranks, by those times


def note(name: str, group: Any, began_ns: int, ended_ns: int) -> int | None:
    """A call of ``group``'s to send or to receive has just ended, and returns to its caller.

    Its time, by which ``came_from`` knows it.
    """
    try:
        its_name = group.group_name
    except RuntimeError:  # it was made by hand, and torch knows of none
        return None
    frame = sys._getframe(2)
    kind = (name, its_name, *_stack(frame))
    if (number := _kinds.get(kind)) is None:
        number = next(_numbers)
        _described[number] = _description(name, [its_name, group.group_desc], frame)
        _kinds[kind] = number
    _noted.append(number)
    # Its operator, which a trace has, lies around the middle.
    _times_ns.append(time_ns := (began_ns + ended_ns) // 2)
    return time_ns


def came_from(rank: int, time_ns: int) -> None:
    """What was to be received from any source came from that global rank."""
    _sources[time_ns] = rank
    if len(_sources) > _MOST:
        del _sources[next(iter(_sources))]


def entries(since_ns: int) -> list[dict[str, Any]]:
    """Those called since then, as the flight recorder's dump has operations."""
    return [
        {**_described[number], "time_created_ns": time_ns, "source": _sources.get(time_ns)}
        for number, time_ns in zip(_noted, _times_ns, strict=True)
        if time_ns >= since_ns
    ]


def _stack(frame: FrameType | None) -> list[int]:
    """Where a frame is, and those around it up to the program's own function."""
    found: list[int] = []
    while frame is not None:  # each costs to look at
        code = frame.f_code
        found += id(code), frame.f_lasti
        if _is_own(code):
            break
        frame = frame.f_back
    return found


def _is_own(code: CodeType) -> bool:
    if (known := _codes.get(id(code))) is None:
        own = is_own(code.co_filename) and not code.co_name.startswith("<")
        known = _codes[id(code)] = code, own
    return known[1]


def _description(name: str, group: list[str], frame: FrameType) -> dict[str, Any]:
    frames = [
        {"filename": one.f_code.co_filename, "line": line, "name": one.f_code.co_name}
        for one, line in traceback.walk_stack(frame)
    ]
    return {
        "profiling_name": f"gloo:{name}",
        "process_group": group,
        "is_p2p": True,
        "called_at": call_site(frames),
    }
