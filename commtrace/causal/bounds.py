"""What an edit of a rank saves at most: what it takes from the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int32, Int64
from commtrace.causal.edits import factors
from commtrace.causal.graph import Lags, longest_way, replayed
from commtrace.causal.on_core import lags_on_cores
from commtrace.causal.run_graph import run_graph
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["at_most", "critical_edges"]


def critical_edges(run: Measures, lag_ns: Lags) -> Int64:
    """The edges of ranks' own work on the critical path with these lags."""
    return _on_cores(run) if lag_ns is lags_on_cores(run) else _critical(run, lag_ns)


@measure
def _on_cores(run: Measures) -> Int64:
    return _critical(run, lags_on_cores(run))


def _critical(run: Measures, lag_ns: Lags) -> Int64:
    its = run_graph(run)
    time = replayed(its.graph, lag_ns)
    ended = its.ended[its.graph.time_ns[its.ended] <= its.end_ns[-1]]
    done = np.concatenate((its.ends[-1], ended))
    way = longest_way(its.graph, lag_ns, time, int(done[time[done].argmax()]))
    return np.sort(way[its.own_of(way) >= 0])


def at_most(
    run: Measures, lag_ns: Lags, way: Int64, own_ns: Int32 | Int64, wanted_ns: Float64
) -> Float64:
    """What each rank takes from the critical path, edges of own work, if its work is as wanted."""
    its = run_graph(run)
    own = its.own_of(way)
    call = its.own_call[own]
    at = call, its.own_column[own]
    factor = factors(own_ns[at], wanted_ns[at])
    size = int(its.calls.rank.max()) + 1
    shorter = lag_ns[way] * (1 - factor)
    return np.bincount(its.calls.rank[call], shorter, minlength=size).astype(np.float64)
