"""PyTorch's flight recorder: group and sequence number of operations that a trace lacks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from commtrace import comms

__all__ = ["Entry", "FlightRecorder"]


_MOST_WITHIN = 1024  # operations of one call; more is damage, and would cost its square


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
    within the ``c10d`` operator that enqueued the operation.
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

    def within(self, start_ns: int, end_ns: int, ops: Collection[str | None]) -> list[Entry]:
        """The operations of these kinds that were enqueued in an interval, in order."""
        begin, end = bisect_left(self._times, start_ns), bisect_right(self._times, end_ns)
        end = min(end, begin + _MOST_WITHIN)
        return [
            entry
            for entry in self.entries[begin:end]
            if comms.canonical_operation(entry.profiling_name) in ops
        ]


def _entry(item: Any) -> Entry | None:
    try:
        entry = msgspec.convert(item, Entry)
    except msgspec.ValidationError:
        return None
    return entry if entry.process_group else None
