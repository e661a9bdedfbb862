"""Times on the run's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.intervals import Intervals
from commtrace.matching import Offsets
from commtrace.measures import measure
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["clock_offsets", "intervals_on_run", "on_run", "own_clocks"]


def on_run(run: Measures, rank: int | Int64, times_ns: Int64) -> Int64:
    """Times of a rank, or of one for each, on the run's clock; as they are where it has none."""
    if not times_ns.size:
        return times_ns
    return clock_offsets(run).on_run_clock(times_ns, np.asarray(rank))[0]


@measure
def clock_offsets(run: Measures) -> Offsets:
    """How far each rank's clock is ahead, which also tells of which it is known."""
    return Offsets.of(matched(run).clock)


def intervals_on_run(run: Measures, rank: int, when: Intervals) -> Intervals:
    """A rank's times from and to, on the run's clock."""
    start, end = np.split(on_run(run, rank, np.concatenate(when)), 2)
    return start, end


def own_clocks(run: Measures) -> list[int]:
    """The ranks whose clocks could not be compared."""
    clock = matched(run).clock
    unknown: list[int] = clock.ints("rank")[clock.ints("offset_ns") == NULL].tolist()
    return unknown
