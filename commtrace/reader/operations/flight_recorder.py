"""PyTorch's flight recorder: group and sequence number of operations that a trace lacks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from commtrace import comms

__all__ = ["Entry", "FlightRecorder"]


_MOST_WITHIN = 1024  # operations of one call; more is damage, and would cost its square
_APART_NS = 30_000
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
    source: int | None = None

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
        self._beside: dict[tuple[int, int], Entry] = {}

    def know(self, calls: Iterable[tuple[int, int]]) -> None:
        """When all of a rank's calls began and ended; entries in none of them may belong beside.

        To the nearest call, if that holds none and no other is nearly as near.
        """
        spans = sorted(calls)
        held, strays, upto = set[tuple[int, int]](), list[Entry](), 0
        for span in spans:
            begin, end = self._places(*span)
            if begin < end:
                held.add(span)
            strays += self.entries[upto:begin]
            upto = max(upto, end)
        strays += self.entries[upto:]
        found: dict[tuple[int, int], list[Entry]] = {}
        for entry in strays:
            its = _nearest(spans, entry.time_created_ns)
            if its is not None and its not in held:
                found.setdefault(its, []).append(entry)
        self._beside = {span: its[0] for span, its in found.items() if len(its) == 1}

    def within(self, start_ns: int, end_ns: int, ops: Collection[str | None]) -> list[Entry]:
        """The operations of these kinds that a call enqueued, in order.

        Those noted while it ran; else the one noted beside it (see ``know``).
        """
        begin, end = self._places(start_ns, end_ns)
        beside = self._beside.get((start_ns, end_ns))
        found = self.entries[begin:end] or ([beside] if beside else [])
        return [one for one in found if comms.canonical_operation(one.profiling_name) in ops]

    def _places(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        begin, end = bisect_left(self._times, start_ns), bisect_right(self._times, end_ns)
        return begin, min(end, begin + _MOST_WITHIN)


def _nearest(spans: list[tuple[int, int]], time_ns: int) -> tuple[int, int] | None:
    """The span that a moment is soon before or behind, half as far from it as from any other."""
    at = bisect_left(spans, (time_ns,))
    near = sorted(
        (max(start_ns - time_ns, time_ns - end_ns), (start_ns, end_ns))
        for start_ns, end_ns in spans[max(at - 2, 0) : at + 2]
    )
    if not near or near[0][0] > _APART_NS:
        return None
    return near[0][1] if len(near) < 2 or 2 * near[0][0] < near[1][0] else None


def _entry(item: Any) -> Entry | None:
    try:
        entry = msgspec.convert(item, Entry)
    except msgspec.ValidationError:
        return None
    return entry if entry.process_group else None
