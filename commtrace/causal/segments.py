"""What each rank did by itself between two calls, and what is typical of such a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64
from commtrace.causal.host_graph import HOST, RunGraph, run_graph
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OwnWork", "own_work"]


@dataclass(frozen=True, eq=False)
class OwnWork:
    """``own_ns`` of each call is its rank's own work since its call before, without waiting.

    ``typical_ns`` is the median of the other ranks' at the same place of the same step; where
    ranks call differently, its own times what the step's own work of a rank is to its own in the
    median; NaN where nobody is to compare with. ``mean_ns`` is the mean of all ranks there, its
    own included.
    """

    own_ns: Int64
    typical_ns: Float64
    mean_ns: Float64


@measure
def own_work(run: Measures) -> OwnWork:
    """The own work of a run's calls."""
    its = run_graph(run)
    calls = its.calls
    host = (its.graph.kind == HOST) & (its.segment >= 0)
    own = np.zeros(calls.rank.size, dtype=np.int64)
    np.add.at(own, its.segment[host], its.graph.lag_ns[host])
    place = _codes(calls.step, calls.place)
    typical, mean = _others(place, own.astype(np.float64))
    in_step = _codes(calls.step, calls.rank)
    sums = np.bincount(in_step, weights=own)
    first = np.unique(in_step, return_index=True)[1]
    others, average = _others(calls.step[first], sums)
    alone = np.isnan(typical)
    with np.errstate(divide="ignore", invalid="ignore"):
        typical = np.where(alone, own * (others / sums)[in_step], typical)
        mean = np.where(alone, own * (average / sums)[in_step], mean)
    return OwnWork(own, typical, mean)


def _codes(first: Int64, second: Int64) -> Int64:
    both = np.stack((first, second), axis=1)
    return np.unique(both, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _others(group: Int64, value: Float64) -> tuple[Float64, Float64]:
    """For each value, the median of the others of its group, NaN if there are none; the mean of all."""
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
