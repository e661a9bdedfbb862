"""When a GPU was idle for want of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64
from commtrace.causal.edits.rank_edits import copying_within, launching_at_once
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import Edit
from commtrace.intervals import Intervals, total, union, united
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.rank.timelines import SMALL_BYTES, Timeline
from commtrace.metrics.run.run_clock import intervals_on_run
from commtrace.metrics.run.whole import has_steps
from commtrace.units import mb, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Idle", "carried", "explained_by", "launched_in_time", "starting", "starved_ns"]

_OF_KERNELS, _OF_RUN = 20, 0.1


class Idle(Struct, frozen=True):
    """When a device was idle for want of a launch, each interval by itself."""

    line: Timeline
    begin_ns: Int64
    end_ns: Int64

    @classmethod
    def before(cls, line: Timeline, found: Bool) -> Idle:
        """Before these events."""
        return cls(line, (line.start_ns - line.idle_ns)[found], line.start_ns[found])

    @property
    def idle_ns(self) -> Int64:
        """How long each is."""
        return self.end_ns - self.begin_ns

    @property
    def behind(self) -> Int64:
        """The line's event before which each of them ends."""
        return np.searchsorted(self.line.start_ns, self.end_ns).clip(
            max=len(self.line.start_ns) - 1
        )

    @property
    def total_ns(self) -> int:
        """How long all are."""
        return int(self.idle_ns.sum())


def _next_to_copies(found: Idle) -> bool:
    """Whether most of this time lies next to small copies, in whose waits the host lost its lead.

    Where these are many it is them that cost it.
    """
    line, copies = found.line, found.line.small_copies()
    beside = line.starved_beside(copies)
    return bool(2 * found.idle_ns[beside[found.behind]].sum() > found.total_ns)


def _between_large_copies(found: Idle) -> bool:
    """Whether most of this time lies between two large copies from or to the host.

    From and to pageable memory the host takes part: it fills or empties what the GPU copies.
    """
    large = _large_copies(found.line)
    between = large[found.behind] & large[found.behind - 1]  # none ends before the first event
    return bool(2 * found.idle_ns[between].sum() > found.total_ns)


def _large_copies(line: Timeline) -> Bool:
    return np.asarray(line.with_host & (line.size_bytes >= SMALL_BYTES))


def _round_trips(found: Idle) -> Int64:
    """Of the device's events the large copies to the host before such times, and back behind.

    Only those with both: what the host computes meanwhile needs the one, and makes the other.
    """
    line, large = found.line, _large_copies(found.line)
    to_host, from_host = (large & (line.kind == kind) for kind in ("DtoH", "HtoD"))
    back = found.behind[found.behind > 0]  # none comes back before the first event
    both = from_host[back] & to_host[back - 1]
    return np.concatenate((back[both] - 1, back[both]))


def starved_ns(run: Measures, found: list[Idle]) -> int:
    """How long any of the devices was idle so, or made round trips: others may wait for it."""

    def when(its: Idle) -> Intervals:
        trips, line = _round_trips(its), its.line
        begin = np.append(its.begin_ns, line.start_ns[trips])
        return intervals_on_run(run, line.rank, (begin, np.append(its.end_ns, line.end_ns[trips])))

    return total(united(*map(when, found)))


def explained_by(stalls: Idle) -> str | None:
    """The rule whose copies, if it finds any, make the host stall."""
    if _next_to_copies(stalls):
        return "copy-loop"
    return "pageable-copy" if _between_large_copies(stalls) else None


def carried(found: Idle) -> str:
    """What is copied to the host, computed with there and copied back, and what to do about it."""
    line, trips = found.line, _round_trips(found)
    if len(trips) <= len(found.idle_ns):  # two for each: not for most
        return ""
    time_ns = int((line.end_ns - line.start_ns)[trips].sum())
    return (
        f"the GPU sends {mb(float(line.size_bytes[trips].sum()))} there and back for it, which "
        f"takes another {ms(time_ns)}: compute that on the GPU if memory allows (of an optimizer "
        "that is offloaded to the CPU, shard the state over more ranks, or offload a part of it)"
    )


def launched_in_time(run: Measures, found: list[Idle]) -> Edit:
    """What devices waited for is launched as they run dry, and needs no copy there and back."""

    def edit(lag_ns: Lags) -> Int64:
        lag: Int64 = lag_ns.astype(np.int64)
        for idle in found:
            line, trips = idle.line, _round_trips(idle)
            launching_at_once(run, line.rank, union(idle.begin_ns, idle.end_ns), lag)
            none: Float64 = np.zeros(trips.size)
            if trips.size:
                copying_within(run, line.rank, line.start_ns[trips], none, lag)
        return lag

    return edit


def starting(line: Timeline, run: Measures) -> tuple[int, int]:
    """From when to when a run without steps starts: hosts connect, load libraries, allocate.

    From the first call of an operation until one communication kernel of twenty has run, or a tenth
    of the run has passed since the first of them. No time where that cannot be told.
    """
    starts = line.start_ns[line.kind == "communication"]
    first = len(starts) // _OF_KERNELS
    if not first or has_steps(run):
        return 0, 0
    calls = rows_of_rank(run, "ops", line.rank)
    called = calls.ints("start_ns")[calls.coded("kind").being("communication")]
    span_ns = int(line.end_ns.max()) - line.first_ns
    began = int(called.min(initial=int(starts[0])))
    return began, min(int(starts[first]), int(starts[0]) + round(_OF_RUN * span_ns))
