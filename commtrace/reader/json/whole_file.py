"""All events of one file, for who shows them rather than measures them."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from commtrace.arrays import NULL, Int64
from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.document import Document
from commtrace.reader.json.metadata import base_ns
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import nanoseconds

__all__ = ["EveryEvent", "every_event"]

_E = TypeVar("_E", bound=Event)


class EveryEvent(Struct, Generic[_E], frozen=True):
    """Events in the order of the file, with their times.

    ``start_ns`` are Unix times, ``duration_ns`` lengths; NULL where an event has none.
    """

    events: list[_E]
    start_ns: Int64
    duration_ns: Int64


def every_event(path: Path, kind: type[_E]) -> EveryEvent[_E]:
    """Every event of a file, as that struct, also of a damaged one.

    Raises TraceError where the file cannot be read or is no trace.
    """
    found: list[_E] = []
    document = Document(path, kind, found.extend, wanted=None)
    for block in Source(path):
        document.feed(block)
    document.finish()
    start_ns = nanoseconds([event.ts for event in found])
    known = start_ns != NULL
    start_ns[known] += base_ns(document.metadata) or 0
    return EveryEvent(found, start_ns, nanoseconds([event.dur for event in found]))
