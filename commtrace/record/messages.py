"""Which messages a program has called for, at which lines: gloo's recorder keeps none."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from itertools import count
from types import FrameType
from typing import Any

from commtrace.record.call_site import call_site

__all__ = ["entries", "note"]

_MOST = 20_000  # as many operations as the flight recorder keeps
_DEPTH = 20  # calls: torch's are four or five of them

# What calls have in common is kept once, by what is compared fast, so that nothing is made for each
# message that Python's garbage collector would have to look at.
_kinds: dict[tuple[str | int, ...], int] = {}
_described: dict[int, dict[str, Any]] = {}
_numbers = count()
_codes: list[object] = []  # whose ids must remain theirs
_noted: deque[int] = deque(maxlen=_MOST)
_times_ns: deque[int] = deque(maxlen=_MOST)


def note(name: str, group: Any, began_ns: int, ended_ns: int) -> None:
    """A call of ``group``'s to send or to receive has just ended, and returns to its caller."""
    frame = sys._getframe(2)
    kind = (name, group.group_name, *_stack(frame))
    if (number := _kinds.get(kind)) is None:
        number = next(_numbers)
        _described[number] = _description(name, group, frame)
        _kinds[kind] = number
    _noted.append(number)
    # Its operator, which a trace has, lies around the middle.
    _times_ns.append((began_ns + ended_ns) // 2)


def entries(since_ns: int) -> list[dict[str, Any]]:
    """Those called since then, as the flight recorder's dump has operations."""
    return [
        {**_described[number], "time_created_ns": time_ns}
        for number, time_ns in zip(_noted, _times_ns, strict=True)
        if time_ns >= since_ns
    ]


def _stack(frame: FrameType | None) -> list[int]:
    """Where a frame and those around it are."""
    found: list[int] = []
    while frame is not None and len(found) < 2 * _DEPTH:
        found += id(frame.f_code), frame.f_lasti
        frame = frame.f_back
    return found


def _description(name: str, group: Any, frame: FrameType) -> dict[str, Any]:
    around = list(traceback.walk_stack(frame))
    _codes.extend(frame.f_code for frame, _ in around)
    frames = [
        {"filename": one.f_code.co_filename, "line": line, "name": one.f_code.co_name}
        for one, line in around[:_DEPTH]
    ]
    return {
        "profiling_name": f"gloo:{name}",
        "process_group": [group.group_name, group.group_desc],
        "is_p2p": True,
        "called_at": call_site(frames),
    }
