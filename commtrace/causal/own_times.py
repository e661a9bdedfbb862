"""When ranks' hosts and devices did the own work before calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int32, Int64
from commtrace.causal.run_graph import run_graph

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OwnTimes", "own_times"]


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
