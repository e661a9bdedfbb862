"""What an edit of ranks saves at most: what it takes from a critical path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int32, Int64
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import factors, steps_at
from commtrace.causal.replay.graph import Change, Lags, longest_way, replayed
from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Way", "at_most", "critical_way", "saves_at_most", "way_with"]


class Way(Struct, frozen=True, eq=False):
    """A critical path: its ``edges`` of ranks' own work, in order, their lags, and when it ends.

    ``own`` is which of the graph's ``own`` they are, ``step_ns`` how long each step is with it.
    """

    own: Int64
    edges: Int32
    lag_ns: Lags
    end_ns: int
    step_ns: Int64

    def end_with(self, change: Change) -> int:
        """When it ends with a change of own work, as edges in order: the run ends no earlier."""
        edges, lag_ns = change
        at = np.searchsorted(edges, self.edges)
        changes = np.append(edges, -1)[at] == self.edges
        longer_ns = lag_ns[at[changes]] - self.lag_ns[changes]
        return self.end_ns + int(longer_ns.sum())


def critical_way(run: Measures, lag_ns: Lags) -> Way:
    """The critical path with these lags."""
    return _undisturbed(run) if lag_ns is undisturbed(run) else _critical(run, lag_ns)


@measure
def _undisturbed(run: Measures) -> Way:
    return _critical(run, undisturbed(run))


def _critical(run: Measures, lag_ns: Lags) -> Way:
    return _way_to(run, run_graph(run).last_done, lag_ns)


def way_with(run: Measures, lag_ns: Lags) -> Way:
    """A critical path with these lags that the run ends with, however lags change."""
    return _way_to(run, run_graph(run).ends[-1], lag_ns)


def _way_to(run: Measures, nodes: Int32, lag_ns: Lags) -> Way:
    """The way to the last of some nodes."""
    its = run_graph(run)
    time = replayed(its.graph, lag_ns)
    last = int(nodes[time[nodes].argmax()])
    own = its.own_of(longest_way(its.graph, lag_ns, time, last))
    own = np.sort(own[own >= 0])
    edges = its.own[own]
    return Way(own, edges, lag_ns[edges], int(time[last]), steps_at(run, time))


def saves_at_most(ways: Sequence[Way], change: Change) -> int:
    """What a change saves at most of the first of these ways, the critical path without it."""
    return ways[0].end_ns - max(way.end_with(change) for way in ways)


def at_most(run: Measures, way: Way, own_ns: Int32 | Int64, wanted_ns: Float64) -> Float64:
    """What each rank takes from the critical path if its work is as wanted."""
    its = run_graph(run)
    call = its.own_call[way.own]
    at = call, its.own_column[way.own]
    factor = factors(own_ns[at], wanted_ns[at])
    size = int(its.calls.rank.max()) + 1
    shorter = way.lag_ns * (1 - factor)
    return np.bincount(its.calls.rank[call], shorter, minlength=size).astype(np.float64)
