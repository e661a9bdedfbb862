"""What if a rank's host launched in time or did not block, or its copies were faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64
from commtrace.causal.builder import COPY, HOST, JOIN, WAIT
from commtrace.causal.graph import DROPPED
from commtrace.causal.run_graph import RunGraph, run_graph
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["copying_within", "launching_within", "not_blocking"]

_CLOCKS_NS = 5_000  # the GPU's times and the host's may differ by that


def launching_within(
    run: Measures, rank: int, launch_ns: Int64, most_ns: int, lag_ns: Int64
) -> Int64:
    """A rank's host needs at most so long for each of these launches, on the rank's own clock."""
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    edges = np.flatnonzero((its.graph.kind == HOST) & (its.rank[its.graph.target] == rank))
    launches = np.isin(its.graph.time_ns[its.graph.target[edges]], on_run(run, rank, launch_ns))
    lag[edges[launches]] = np.minimum(lag[edges[launches]], most_ns)
    return lag


def not_blocking(run: Measures, rank: int, done_ns: Int64, soon_ns: int, lag_ns: Int64) -> Int64:
    """A rank's host does not wait for what was done at these times, on the rank's own clock.

    That are the waits that ended so soon after one of them.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    joins = np.flatnonzero((its.graph.kind == JOIN) & (its.rank[its.graph.target] == rank))
    joins = joins[_of_hosts(its)[its.graph.target[joins]]]
    done = np.sort(on_run(run, rank, done_ns)) - _CLOCKS_NS
    resumed_ns = its.graph.time_ns[its.graph.target[joins]]
    last = np.searchsorted(done, resumed_ns, side="right") - 1
    lag[joins[(last >= 0) & (resumed_ns - done[last] <= soon_ns + _CLOCKS_NS)]] = DROPPED
    return lag


def copying_within(
    run: Measures, rank: int, start_ns: Int64, most_ns: Float64, lag_ns: Int64
) -> Int64:
    """A rank's copies that started at these times, on its own clock, take at most so long each.

    So does what waits from their start on: the host that feeds one from pageable memory.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    copies = np.zeros(its.graph.time_ns.size, dtype=np.bool_)
    copies[its.graph.source[its.graph.kind == COPY]] = True
    copies &= its.rank == rank
    edges = np.flatnonzero(np.isin(its.graph.kind, (COPY, JOIN)))
    edges = edges[copies[its.graph.source[edges]]]
    started_ns = on_run(run, rank, start_ns)
    order = np.argsort(started_ns, kind="stable")
    begin = its.graph.time_ns[its.graph.source[edges]]
    at = np.minimum(np.searchsorted(started_ns[order], begin), order.size - 1)
    mine = started_ns[order[at]] == begin
    most = np.rint(most_ns[order[at]]).astype(np.int64)
    lag[edges[mine]] = np.minimum(lag[edges], most)[mine]
    return lag


def _of_hosts(its: RunGraph) -> Bool:
    """Which nodes are of a host thread, at least its second."""
    of = np.zeros(its.graph.time_ns.size, dtype=np.bool_)
    of[its.graph.target[np.isin(its.graph.kind, (HOST, WAIT))]] = True
    return of
