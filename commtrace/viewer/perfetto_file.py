"""A timeline as Perfetto's own format: packets of track events, gzipped.

Packets are what ``perfetto/trace/trace_packet.proto`` describes. A section is one sequence of
packets, whose names are written once and referred to by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import BinaryIO

import msgspec
import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.viewer.protobuf import (
    TIME_BYTES,
    double,
    fixed64,
    integer,
    message,
    text,
    times,
    varint,
)
from commtrace.viewer.slices import ROOT, Slice, Value

__all__ = ["PerfettoFile"]

# Fields of TracePacket
_PACKET, _TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 1, 8, 10, 11, 12, 13, 60
# Fields of TrackEvent, and what its type can be
_TYPE, _TRACK, _NAME, _ARGUMENT, _VALUE, _FLOW, _OPERATION = 9, 11, 10, 4, 44, 47, 52
_BEGIN, _END, _COUNTER = 1, 2, 4
# Fields of InternedData
_NAMES, _ARGUMENTS, _TEXTS = 2, 3, 29
# Fields of TrackDescriptor, and its ordering of children
_UUID, _TITLE, _PARENT, _COUNTS, _ORDERING, _PLACE = 1, 2, 5, 8, 11, 12
_EXPLICIT = 3
_UNIT, _SAME_SCALE = 6, 7  # of CounterDescriptor
_FIRST, _LATER = 1, 2  # a sequence's flags: begins anew, needs what came before
# Fields of DebugAnnotation
_NUMBER, _BOOL, _INT, _DOUBLE, _TEXT = 1, 2, 4, 5, 17

_AT = varint(_TIME << 3)
_SHORT = [varint(_ARGUMENT << 3 | 2) + varint(length) for length in range(32)]
"""What comes before an argument of such a length: it is two numbers."""
_INT_TAG = varint(_INT << 3)


class PerfettoFile:
    """Writes packets to a file."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._tracks = 0
        self._sequence = 0
        self._children: dict[int, int] = {}
        self.section()
        self._packet(message(_DESCRIPTOR, integer(_UUID, ROOT), integer(_ORDERING, _EXPLICIT)))

    def section(self) -> None:
        """A new sequence, with names of its own."""
        self._sequence += 1
        self._names: dict[str, bytes] = {}
        self._arguments: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._new: list[bytes] = []
        self._end = integer(_FLAGS, _LATER) + self._of_sequence()
        self._packet(integer(_FLAGS, _FIRST))

    def track(self, name: str, parent: int = ROOT, *, unit: str | None = None) -> int:
        """A track; counters of one unit share their scale."""
        self._tracks += 1
        place = self._children[parent] = self._children.get(parent, 0) + 1
        fields = [
            integer(_UUID, self._tracks),
            integer(_PARENT, parent),
            text(_TITLE, name),
            integer(_ORDERING, _EXPLICIT),
            integer(_PLACE, place),
        ]
        if unit is not None:
            fields.append(message(_COUNTS, text(_UNIT, unit), text(_SAME_SCALE, unit)))
        self._packet(message(_DESCRIPTOR, *fields))
        return self._tracks

    def slices(self, track: int, slices: Sequence[Slice]) -> None:
        """Begins and ends in the order of time."""
        starts = times(np.fromiter((its.start_ns for its in slices), np.int64, len(slices)))
        ends = times(np.fromiter((its.end_ns for its in slices), np.int64, len(slices)))
        end_head, end_tail = self._event(integer(_TYPE, _END) + integer(_TRACK, track))
        begin = integer(_TYPE, _BEGIN) + integer(_TRACK, track)
        plain: dict[str, tuple[bytes, bytes]] = {}
        made: list[bytes] = []
        open_: list[tuple[int, bytes]] = []
        for at, its in enumerate(slices):
            while open_ and open_[-1][0] <= its.start_ns:
                made += end_head, open_.pop()[1], end_tail
            if its.args or its.operation or its.leaves or its.reaches:
                head, tail = self._event(begin + self._fields(its))
            elif its.name in plain:
                head, tail = plain[its.name]
            else:
                head, tail = plain[its.name] = self._event(begin + self._name(its.name))
            here = TIME_BYTES * at
            made += head, starts[here : here + TIME_BYTES], tail
            open_.append((its.end_ns, ends[here : here + TIME_BYTES]))
        while open_:
            made += end_head, open_.pop()[1], end_tail
        self._out.write(self._interned())
        self._out.write(b"".join(made))

    def counter(self, track: int, times_ns: Int64, values: Float64) -> None:
        """One packet for each value."""
        when = times(times_ns)
        event = integer(_TYPE, _COUNTER) + integer(_TRACK, track)
        made: list[bytes] = []
        for at, value in enumerate(values.tolist()):
            head, tail = self._event(event + double(_VALUE, value))
            made += head, when[TIME_BYTES * at : TIME_BYTES * (at + 1)], tail
        self._out.write(b"".join(made))

    def _fields(self, its: Slice) -> bytes:
        numbers, texts = self._arguments, self._texts
        fields = [self._name(its.name)]
        for name, value in its.args.items():
            if value is None:
                continue
            body = numbers.get(name) or self._numbered(numbers, _ARGUMENTS, _NUMBER, name)
            if type(value) is str:
                body += texts.get(value) or self._numbered(texts, _TEXTS, _TEXT, value)
            elif type(value) is int and 0 <= value < 1 << 63:
                body += _INT_TAG + varint(value)
            else:
                body += self._value(value)
            fields.append(_SHORT[len(body)] + body)
        if its.operation:
            fields.append(integer(_OPERATION, its.operation))
        # Which end of an arrow an event is, its time says, and of one time the place in the file.
        fields += [fixed64(_FLOW, arrow) for arrow in (*its.leaves, *its.reaches)]
        return b"".join(fields)

    def _name(self, name: str) -> bytes:
        return self._names.get(name) or self._numbered(self._names, _NAMES, _NAME, name)

    def _value(self, value: Value) -> bytes:
        if isinstance(value, bool):
            return integer(_BOOL, value)
        if isinstance(value, int):
            if -(1 << 63) <= value < 1 << 63:
                return integer(_INT, value)
            value = str(value)
        if isinstance(value, float):
            return double(_DOUBLE, value)
        if isinstance(value, list | dict):
            value = msgspec.json.encode(value).decode()
        return self._numbered(self._texts, _TEXTS, _TEXT, str(value))

    def _numbered(self, known: dict[str, bytes], kind: int, field: int, name: str) -> bytes:
        """The field with the number that stands for a name in this section."""
        if name not in known:
            number = len(known) + 1
            known[name] = integer(field, number)
            self._new.append(message(kind, integer(1, number), text(2, name)))
        return known[name]

    def _interned(self) -> bytes:
        """A packet with the names that are new, nothing without any."""
        if not self._new:
            return b""
        made = message(_PACKET, message(_INTERNED, *self._new), self._end)
        self._new.clear()
        return made

    def _event(self, fields: bytes) -> tuple[bytes, bytes]:
        """What comes before and behind an event's time in its packet."""
        tail = message(_EVENT, fields) + self._end
        return _head(len(tail)), tail

    def _packet(self, fields: bytes) -> None:
        self._out.write(message(_PACKET, fields, self._of_sequence()))

    def _of_sequence(self) -> bytes:
        return integer(_SEQUENCE, self._sequence)


@lru_cache(maxsize=1 << 12)
def _head(tail: int) -> bytes:
    """What comes before an event's time, and so many bytes behind it."""
    return varint(_PACKET << 3 | 2) + varint(len(_AT) + TIME_BYTES + tail) + _AT
