"""One rank's file as Perfetto is to show it: every event, its times in Unix nanoseconds."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.reader.json import BROKEN, Event, every_event

__all__ = ["Id", "Rank", "Shown", "identifier", "read_rank"]

Id = int | str


class Shown(Event, gc=False):
    """An event with what only a picture needs: of flows ``id`` and ``bp``, of instants ``s``."""

    id: Any = None
    bp: str | None = None
    s: str | None = None


class _Named(msgspec.Struct):
    """The arguments of a metadata event."""

    name: str = ""
    labels: str = ""


@dataclass(frozen=True)
class Rank:
    """One rank's events, a slice before those within it, and before its flows.

    ``names`` are what metadata events call (what, process, thread); ``left_out`` counts the
    events without a phase or a usable time.
    """

    number: int
    events: list[Shown]
    start_ns: Int64
    duration_ns: Int64
    names: dict[tuple[str, Id, Id], str]
    left_out: int


def read_rank(number: int, path: Path) -> Rank:
    """Read a rank's file, also a damaged one. Raises TraceError where it is no trace."""
    read = every_event(path, Shown)
    phases = [event.ph for event in read.events]
    shown = np.array([phase not in ("", "M") for phase in phases], dtype=np.bool_)
    instant = np.array([phase != "X" for phase in phases], dtype=np.bool_)
    timed = (read.start_ns != NULL) & (instant | (read.duration_ns >= 0))
    usable = np.flatnonzero(shown & timed)
    order = usable[np.lexsort((-read.duration_ns[usable], instant[usable], read.start_ns[usable]))]
    return Rank(
        number,
        [read.events[row] for row in order.tolist()],
        read.start_ns[order],
        read.duration_ns[order],
        _names([event for event in read.events if event.ph == "M"]),
        left_out=len(phases) - phases.count("M") - order.size,
    )


def identifier(value: Any) -> Id:
    """What a trace calls a process, a thread or a flow, whatever its type."""
    return value if isinstance(value, int | str) else "" if value is None else reprlib.repr(value)


def _names(events: list[Shown]) -> dict[tuple[str, Id, Id], str]:
    names = {}
    for event in events:
        try:
            named = msgspec.json.decode(event.args, type=_Named)
        except BROKEN:
            continue
        thread = identifier(event.tid) if event.name == "thread_name" else ""
        key = event.name or "", identifier(event.pid), thread
        names[key] = (named.name or named.labels).strip()
    return names
