"""One rank's file as Perfetto is to show it: every event, its times in Unix nanoseconds."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.reader.json.document import Document, Event
from commtrace.reader.json.salvage import BROKEN
from commtrace.reader.json.scan import base_ns
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import nanoseconds

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
    found: list[Shown] = []
    document = Document(path, Shown, found.extend, fast=False)
    for block in Source(path):
        document.feed(block)
    document.finish()
    names = _names([event for event in found if event.ph == "M"])
    events = [event for event in found if event.ph != "M"]
    start_ns = nanoseconds([event.ts for event in events])
    duration_ns = nanoseconds([event.dur for event in events])
    known = np.array([event.ph != "" for event in events], dtype=np.bool_)
    instant = np.array([event.ph != "X" for event in events], dtype=np.bool_)
    usable = np.flatnonzero(known & (start_ns != NULL) & (instant | (duration_ns >= 0)))
    order = usable[np.lexsort((-duration_ns[usable], instant[usable], start_ns[usable]))]
    return Rank(
        number,
        [events[row] for row in order.tolist()],
        start_ns[order] + (base_ns(document.metadata) or 0),
        duration_ns[order],
        names,
        left_out=len(events) - order.size,
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
