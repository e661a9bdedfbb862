"""Each rank's counters: bus bandwidth, exposed communication, queued operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Float64, Int64, distinct, integers
from commtrace.intervals import Intervals, covered, subtract
from commtrace.metrics.rank.activity import device_activity
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.metrics.run.run_clock import on_run
from commtrace.metrics.run.span import run_span
from commtrace.viewer.operations import operations_drawn

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.viewer.slices import Timeline

__all__ = ["draw_counters"]

_WINDOWS = 200
_PER_GB_S = 10**6  # bandwidths are added up as integers, so that they come back to 0


def draw_counters(run: Measures, timeline: Timeline, name: str, rank: int, parent: int) -> None:
    """Counters of what the trace holds; none of what it lacks."""
    times, values = _busbw(run, rank)
    if times.size:
        timeline.counter(timeline.track(f"{name} busbw", parent, unit="GB/s"), times, values)
    for device, (times, values) in _exposed(run, rank).items():
        track = f"{name} {device} exposed communication"
        timeline.counter(timeline.track(track, parent, unit="%"), times, values)
    times, values = _queued(run, rank)
    if times.size:
        track = f"{name} queued operations"
        timeline.counter(timeline.track(track, parent, unit="operations"), times, values)


def _busbw(run: Measures, rank: int) -> tuple[Int64, Float64]:
    """Of all transfers under way."""
    drawn = operations_drawn(run)
    mine = drawn.iloc[places_of_rank(run, "collectives", rank)]
    mine = mine[mine["busbw_gb_s"].notna()]
    begin = integers(mine["start_ns"]) + integers(mine["wait_ns"].fillna(0))
    rate = np.rint(mine["busbw_gb_s"].to_numpy(np.float64) * _PER_GB_S).astype(np.int64)
    times, level = _level(begin, integers(mine["end_ns"]), rate)
    return times, level / _PER_GB_S


def _queued(run: Measures, rank: int) -> tuple[Int64, Float64]:
    """Operations that were called and have not begun."""
    mine = run.rows("collectives", places_of_rank(run, "collectives", rank))
    known = mine.ints("launch_ns") != NULL
    launch, start = (on_run(run, rank, mine.ints(n)[known]) for n in ("launch_ns", "start_ns"))
    waits = launch < start
    times, level = _level(launch[waits], start[waits], np.ones(int(waits.sum()), np.int64))
    return times, level.astype(np.float64)


def _exposed(run: Measures, rank: int) -> dict[str, tuple[Int64, Float64]]:
    """Per device, the share of exposed communication in each of the run's windows."""
    first, last = run_span(run)
    edges = distinct(np.linspace(0, last - first, _WINDOWS + 1).astype(np.int64)) + first
    found = {}
    for device, did in device_activity(run).items():
        if device.rank != rank or did.compute is None or not did.communication[0].size:
            continue
        begun, over = subtract(did.communication, did.compute)
        exposed: Intervals = on_run(run, rank, begun), on_run(run, rank, over)
        share = 100 * covered(edges[:-1], edges[1:], exposed) / np.diff(edges)
        found[device.device] = edges, np.append(share, 0.0)
    return found


def _level(begin: Int64, end: Int64, weight: Int64) -> tuple[Int64, Int64]:
    """The sum of the weights of what is under way, from each time at which it changes."""
    times, at = np.unique(np.concatenate((begin, end)), return_inverse=True)
    change = np.zeros(times.size, dtype=np.int64)
    np.add.at(change, at.reshape(-1), np.concatenate((weight, -weight)))
    return times, np.cumsum(change)
