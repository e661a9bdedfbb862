"""When a GPU was idle for want of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Int64
from commtrace.intervals import Intervals, total, union
from commtrace.metrics.rank.timelines import SMALL_BYTES, Timeline
from commtrace.metrics.run.run_clock import intervals_on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Idle", "between_large_copies", "next_to_copies", "round_trips", "starved_ns"]


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


def next_to_copies(found: Idle) -> bool:
    """Whether most of this time lies next to small copies, in whose waits the host lost its lead.

    Where these are many it is them that cost it.
    """
    line, copies = found.line, found.line.small_copies()
    beside = line.starved_beside(copies)
    return bool(2 * found.idle_ns[beside[found.behind]].sum() > found.total_ns)


def between_large_copies(found: Idle) -> bool:
    """Whether most of this time lies between two large copies from or to the host.

    From and to pageable memory the host takes part: it fills or empties what the GPU copies.
    """
    large = _large_copies(found.line)
    between = large[found.behind] & large[found.behind - 1]  # none ends before the first event
    return bool(2 * found.idle_ns[between].sum() > found.total_ns)


def _large_copies(line: Timeline) -> Bool:
    return np.asarray(line.with_host & (line.size_bytes >= SMALL_BYTES))


def round_trips(found: Idle) -> Int64:
    """Of the device's events the large copies to the host before such times, and back behind.

    Only those with both: what the host computes meanwhile needs the one, and makes the other.
    """
    line, large = found.line, _large_copies(found.line)
    to_host, from_host = (large & (line.kind == kind) for kind in ("DtoH", "HtoD"))
    back = found.behind.clip(min=1)
    both = from_host[back] & to_host[back - 1]
    return np.concatenate((back[both] - 1, back[both]))


def starved_ns(run: Measures, found: list[Idle]) -> int:
    """How long any of the devices was idle so, or made ``round_trips``: others may wait for it."""

    def when(its: Idle) -> Intervals:
        trips, line = round_trips(its), its.line
        begin = np.append(its.begin_ns, line.start_ns[trips])
        return intervals_on_run(run, line.rank, (begin, np.append(its.end_ns, line.end_ns[trips])))

    return total(union(*(np.concatenate(ends) for ends in zip(*map(when, found), strict=True))))
