"""The operators of a host, which ``scan`` leaves out where GPUs work."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commtrace.arrays import NULL
from commtrace.reader.json.columns import Names, Numbers, integers
from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.document import Document
from commtrace.reader.json.events import Hosted
from commtrace.reader.json.metadata import base_ns
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import nanoseconds

__all__ = ["host_operators"]

_OPERATORS = ("cpu_op", "Operator")


def host_operators(path: Path) -> Hosted:
    """All of them, those that others call as well.

    Raises TraceError where the file cannot be read or is no trace.
    """
    names, numbers = Names(), Numbers(("thread", "start_ns", "duration_ns"))

    def take(events: list[Event]) -> None:
        its = [event for event in events if event.ph == "X" and event.cat in _OPERATORS]
        start_ns = nanoseconds([event.ts for event in its])
        duration_ns = nanoseconds([event.dur for event in its])
        thread = integers([event.tid for event in its])
        usable = (start_ns != NULL) & (duration_ns >= 0) & (thread != NULL)
        names.extend([its[row].name or "" for row in np.flatnonzero(usable).tolist()])
        numbers.extend(start_ns[usable], duration_ns=duration_ns[usable], thread=thread[usable])

    document = Document(path, Event, take)
    for block in Source(path):
        document.feed(block)
    document.finish()
    return Hosted(names.coded(), **numbers.joined(base_ns(document.metadata) or 0))
