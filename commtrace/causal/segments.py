"""What each rank did by itself between two calls, and what is typical of such a place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Float64, Int64, codes, integers
from commtrace.causal.builder import COPY, HOST, OWN
from commtrace.causal.calls import Calls
from commtrace.causal.run_graph import RunGraph, run_graph
from commtrace.diagnosis import Cause
from commtrace.intervals import Intervals, covered, subtract, union
from commtrace.matching import on_run_clock
from commtrace.measures import measure
from commtrace.metrics.rank.activity import device_work
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "CAUSES",
    "DEVICES",
    "HOSTS",
    "LABELLED",
    "OwnWork",
    "busy",
    "idle_ns",
    "others",
    "own_edges",
    "own_intervals",
    "own_parts",
    "own_work",
    "work_with",
]

LABELLED: dict[Cause, re.Pattern[str]] = {
    "garbage-collection": re.compile(r"commtrace::garbage-collection"),
    "checkpoint": re.compile(r"commtrace::checkpoint"),
    "loader": re.compile(r"enumerate\(DataLoader\)#"),
}
"""What the traces' labels say that a host does, and how they begin."""
CAUSES: tuple[Cause, ...] = (*LABELLED, "compute", "copy", "host")


HOSTS, DEVICES = range(2)
"""The two columns of own work: that of host threads, and that of a device's streams."""


@dataclass(frozen=True, eq=False)
class OwnWork:
    """Own work of each call: its rank's since its call before, without waiting.

    Arrays are calls × (HOSTS, DEVICES), for what these do at one time. ``typical_ns`` is the median
    of the other ranks' at the same place of the same step; where ranks call differently, its own
    times what the step's own work of a rank is to its own in the median; NaN where nobody is to
    compare with. ``mean_ns`` is the mean of all ranks there, its own included. ``place`` numbers
    step and place.
    """

    own_ns: Int64
    typical_ns: Float64
    mean_ns: Float64
    place: Int64

    @cached_property
    def excess_ns(self) -> Float64:
        """What each call's own work is beyond the typical, on host and device together."""
        return np.asarray(np.nan_to_num(self.own_ns - self.typical_ns).sum(axis=1))


@measure
def own_work(run: Measures) -> OwnWork:
    """The own work of a run's calls, as measured."""
    return work_with(run, run_graph(run).graph.lag_ns)


def work_with(run: Measures, lag_ns: Int64) -> OwnWork:
    """The own work of a run's calls with these lags."""
    its = run_graph(run)
    calls = its.calls
    own = np.zeros((calls.rank.size, 2), dtype=np.int64)
    edges, column = own_edges(its)
    np.add.at(own, (its.segment[edges], column), lag_ns[edges])
    place = codes(calls.step, calls.place)
    in_step = codes(calls.step, calls.rank)
    first = np.unique(in_step, return_index=True)[1]
    typical, mean = np.empty(own.shape), np.empty(own.shape)
    for part in (HOSTS, DEVICES):
        mine = own[:, part].astype(np.float64)
        usual, level = others(place, mine)
        sums = np.bincount(in_step, weights=mine).astype(np.float64)
        median, average = others(calls.step[first], sums)
        alone = np.isnan(usual)
        with np.errstate(divide="ignore", invalid="ignore"):  # no own work is nothing times any
            to_median, to_mean = (
                _as_later(calls.taken(first), ratio)[in_step]
                for ratio in (median / sums, average / sums)
            )
            typical[:, part] = np.where(alone, mine * to_median, usual)
            mean[:, part] = np.where(alone, mine * to_mean, level)
    return OwnWork(own, typical, mean, place)


def _as_later(first_calls: Calls, ratio: Float64) -> Float64:
    """Ratios of each step and rank; on GPUs in the first step the median of the rank's later ones.

    What a rank does behind its last call of a step is part of the next: of the first it lacks.
    """
    step, rank = first_calls.step, first_calls.rank
    answer: Float64 = ratio.copy()
    first = step == step[step != NULL].min(initial=np.iinfo(np.int64).max)
    for row in np.flatnonzero(first & ~first_calls.on_cpu).tolist():
        later = ratio[(rank == rank[row]) & ~first & np.isfinite(ratio)]
        if later.size:
            answer[row] = np.median(later)
    return answer


def own_edges(its: RunGraph) -> tuple[Int64, Int64]:
    """The edges that are part of a segment, and which column of own work each is of."""
    edges = np.flatnonzero(np.isin(its.graph.kind, OWN) & (its.segment >= 0))
    return edges, np.where(its.graph.kind[edges] == HOST, HOSTS, DEVICES)


@measure
def own_parts(run: Measures) -> Mapping[Cause, Int64]:
    """Each call's own work by CAUSES: under a label, in operators or kernels, copies, and none."""
    its = run_graph(run)
    edges, column = own_edges(its)
    end = its.graph.time_ns[its.graph.target[edges]]
    start = end - its.graph.lag_ns[edges]
    rank = its.rank[its.graph.target[edges]]
    calls = its.calls.rank.size
    parts: dict[Cause, Int64] = {cause: np.zeros(calls, dtype=np.int64) for cause in CAUSES}
    segment = its.segment[edges]
    on_device = column == DEVICES
    copies = its.graph.kind[edges] == COPY
    with_gpu = np.zeros(int(its.calls.rank.max()) + 1, dtype=np.bool_)
    with_gpu[its.calls.rank[~its.calls.on_cpu]] = True
    np.add.at(parts["copy"], segment[copies], (end - start)[copies])
    computes = on_device & ~copies
    np.add.at(parts["compute"], segment[computes], (end - start)[computes])
    for one in np.unique(rank).tolist():
        mine = (rank == one) & ~on_device
        window = start[mine], end[mine]
        left = window[1] - window[0]
        for cause, when in own_intervals(run, one).items():
            if cause == "compute" and with_gpu[one]:
                continue  # operators that feed it
            time = covered(*window, when)
            np.add.at(parts[cause], segment[mine], time)
            left = left - time
        np.add.at(parts["host"], segment[mine], left)
    return parts


@measure
def idle_ns(run: Measures) -> Int64:
    """Of each call's own work the time in which its host ran no operator, labelled or not."""
    parts = own_parts(run)
    idle: Int64 = parts["host"].copy()
    for cause in LABELLED:
        idle += parts[cause]
    return idle


def own_intervals(run: Measures, rank: int) -> dict[Cause, Intervals]:
    """When a rank did what, on the run's clock: no two at once."""
    found: dict[Cause, Intervals] = {}
    steps = run.steps[(run.steps["rank"] == rank) & run.steps["label"].notna()]
    labels = steps["label"].astype(str)
    taken: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))
    for cause, pattern in LABELLED.items():
        rows = steps[labels.str.match(pattern)]
        begin = integers(rows["start_ns"])
        its = subtract(
            _on_run(run, rank, union(begin, begin + integers(rows["duration_ns"]))), taken
        )
        found[cause], taken = its, _both(taken, its)
    return found | {"compute": subtract(busy(run, rank), taken)}


def busy(run: Measures, rank: int) -> Intervals:
    """When a rank's host ran operators, on the run's clock."""
    for device, did in device_work(run).items():
        if device.rank == rank and device.device == "cpu" and did.compute is not None:
            return _on_run(run, rank, did.compute)
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _on_run(run: Measures, rank: int, when: Intervals) -> Intervals:
    clock = matched(run).clock
    ranks = np.full(when[0].size, rank)
    return on_run_clock(when[0], ranks, clock)[0], on_run_clock(when[1], ranks, clock)[0]


def _both(a: Intervals, b: Intervals) -> Intervals:
    return union(np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1])))


def others(group: Int64, value: Float64) -> tuple[Float64, Float64]:
    """For each value the median of the others of its group, NaN if none; and the mean of all."""
    order = np.lexsort((value, group))
    ordered = value[order]
    begins = np.flatnonzero(np.concatenate(([True], group[order][1:] != group[order][:-1])))
    sizes = np.diff(np.append(begins, value.size))
    begin, size = np.repeat(begins, sizes), np.repeat(sizes, sizes)
    rank = np.arange(value.size) - begin
    low, high = (size - 2) // 2, (size - 1) // 2  # of those that are left, in their order
    safe = size > 1
    a = ordered[np.where(safe, begin + low + (rank <= low), begin)]
    b = ordered[np.where(safe, begin + high + (rank <= high), begin)]
    median = np.where(safe, (a + b) / 2, np.nan)
    mean = np.repeat(np.add.reduceat(ordered, begins) / sizes, sizes) if value.size else ordered
    answer, average = np.empty_like(median), np.empty_like(median)
    answer[order], average[order] = median, mean
    return answer, average
