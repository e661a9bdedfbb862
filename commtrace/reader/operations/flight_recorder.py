"""PyTorch's flight recorder: group and sequence number of operations that a trace lacks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from commtrace import comms

__all__ = ["Entry", "FlightRecorder"]


_MOST_WITHIN = 1024  # operations of one call; more is damage, and would cost its square
_APART_NS = 200_000
"""How far the profiler's clock may be off: it is compared at both ends of a profile alone."""


class Entry(msgspec.Struct):
    """One enqueued operation of the dump."""

    profiling_name: str
    process_group: list[str]
    time_created_ns: int
    is_p2p: bool = False
    collective_seq_id: int | None = None
    p2p_seq_id: int | None = None
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    called_at: str | None = None

    @property
    def group(self) -> str:
        """The name of its group."""
        return self.process_group[0]

    @property
    def seq(self) -> int | None:
        """Its number in its group; point-to-point operations count apart."""
        return self.p2p_seq_id if self.is_p2p else self.collective_seq_id

    @property
    def dtype(self) -> str | None:
        """Its element type."""
        types = [*self.input_dtypes, *self.output_dtypes]
        return comms.canonical_dtype(types[0]) if types else None


class FlightRecorder:
    """The entries of a dump, found by time.

    Source: ``torch._C._distributed_c10d._dump_fr_trace_json``. ``time_created_ns`` lies
    within the ``c10d`` operator that enqueued the operation; where the machine's clock was set or
    slewed while the profiler's ran on, some lie beside it (see ``know``).
    """

    def __init__(self, dump: Any) -> None:
        listed = dump.get("entries") if isinstance(dump, Mapping) else None
        items = listed if isinstance(listed, list) else []
        parsed = [_entry(item) for item in items]
        self.unreadable = parsed.count(None)
        self.entries = sorted(
            (entry for entry in parsed if entry is not None), key=lambda e: e.time_created_ns
        )
        self._times = [entry.time_created_ns for entry in self.entries]
        self._strays: list[Entry] = []

    def know(self, calls: Iterable[tuple[int, int]]) -> None:
        """When all of a rank's calls began and ended; entries in none of them may belong beside."""
        inside: set[int] = set()
        for start_ns, end_ns in calls:
            inside.update(range(*self._places(start_ns, end_ns)))
        self._strays = [entry for at, entry in enumerate(self.entries) if at not in inside]

    def within(self, start_ns: int, end_ns: int, ops: Collection[str | None]) -> list[Entry]:
        """The operations of these kinds that a call enqueued, in order.

        Those noted while it ran; else the nearest that was noted beside it, and in no other call.
        """
        begin, end = self._places(start_ns, end_ns)
        return _of(self.entries[begin:end], ops) or self._beside(start_ns, end_ns, ops)

    def _places(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        begin, end = bisect_left(self._times, start_ns), bisect_right(self._times, end_ns)
        return begin, min(end, begin + _MOST_WITHIN)

    def _beside(self, start_ns: int, end_ns: int, ops: Collection[str | None]) -> list[Entry]:
        def apart_ns(entry: Entry) -> int:
            return max(start_ns - entry.time_created_ns, entry.time_created_ns - end_ns)

        first = bisect_left(self._strays, start_ns - _APART_NS, key=_when)
        last = bisect_right(self._strays, end_ns + _APART_NS, key=_when)
        near = _of(self._strays[first : min(last, first + _MOST_WITHIN)], ops)
        return [min(near, key=apart_ns)] if near else []


def _when(entry: Entry) -> int:
    return entry.time_created_ns


def _of(entries: Iterable[Entry], ops: Collection[str | None]) -> list[Entry]:
    return [one for one in entries if comms.canonical_operation(one.profiling_name) in ops]


def _entry(item: Any) -> Entry | None:
    try:
        entry = msgspec.convert(item, Entry)
    except msgspec.ValidationError:
        return None
    return entry if entry.process_group else None
