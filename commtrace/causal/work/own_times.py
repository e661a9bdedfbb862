"""When ranks' hosts and devices did the own work before calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int32, Int64
from commtrace.causal.run.run_graph import run_graph
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OwnTimes", "own_times", "steps_of_work"]


class OwnTimes(NamedTuple):
    """From when to when, on the run's clock, and before which call: the edges of own work."""

    call: Int32
    begin_ns: Int64
    end_ns: Int64

    def of(self, which: Bool | Int64) -> OwnTimes:
        """Some of them."""
        return OwnTimes(self.call[which], self.begin_ns[which], self.end_ns[which])


def own_times(run: Measures, column: int) -> OwnTimes:
    """Those of all hosts (HOSTS) or of all devices (DEVICES)."""
    its = run_graph(run)
    which = np.flatnonzero(its.own_column == column)
    edges = its.own[which]
    end = its.graph.time_ns[its.graph.target[edges]]
    return OwnTimes(its.own_call[which], end - its.graph.lag_ns[edges], end)


def steps_of_work(run: Measures, rank: int, start_ns: Int64, step: Int64, work: OwnTimes) -> Int64:
    """The step of the call that what a rank began at these times is ``work`` before, else its own.

    What it does behind its last call of a step is part of the next, as calls have it. Times are on
    the rank's own clock.
    """
    calls = run_graph(run).calls
    mine = work.of(calls.rank[work.call] == rank)
    mine = mine.of(np.argsort(mine.begin_ns, kind="stable"))
    if not mine.call.size:
        return step
    start = on_run(run, rank, start_ns)
    at = np.maximum(np.searchsorted(mine.begin_ns, start, side="right") - 1, 0)
    inside = (mine.begin_ns[at] <= start) & (start < mine.end_ns[at])
    return np.where(inside, calls.packed["step"].values(mine.call[at]), step)
