"""What if: edits of a run's graph, each a column of lags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64
from commtrace.causal.host_graph import HOST, run_graph
from commtrace.causal.segments import own_work

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["as_measured", "even", "typical"]


def as_measured(run: Measures) -> Int64:
    """No edit."""
    return run_graph(run).graph.lag_ns.copy()


def typical(run: Measures, ranks: tuple[int, ...], lag_ns: Int64 | None = None) -> Int64:
    """The ranks do each segment in the time that is typical of the others."""
    its = run_graph(run)
    return _scaled(run, own_work(run).typical_ns, np.isin(its.calls.rank, ranks), lag_ns)


def even(run: Measures) -> Int64:
    """All ranks do each segment in their mean time."""
    its = run_graph(run)
    return _scaled(run, own_work(run).mean_ns, np.ones(its.calls.rank.size, np.bool_), None)


def _scaled(run: Measures, wanted_ns: Float64, which: Bool, lag_ns: Int64 | None) -> Int64:
    """The segments of some calls take the time that is wanted, shared as it was."""
    its = run_graph(run)
    own = own_work(run).own_ns
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = wanted_ns / own
    factor = np.where(which & np.isfinite(factor), factor, 1.0)
    host = np.flatnonzero((its.graph.kind == HOST) & (its.segment >= 0))
    lag = (its.graph.lag_ns if lag_ns is None else lag_ns).copy()
    lag[host] = np.rint(lag[host] * factor[its.segment[host]]).astype(np.int64)
    return lag
