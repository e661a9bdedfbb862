"""What an edit of ranks saves at most: what it takes from a critical path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int32, Int64
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import factors, steps_at
from commtrace.causal.replay.graph import Change, Lags, longest_path, replayed
from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["CriticalPath", "at_most", "critical_path", "path_to_end", "saves_at_most"]


class CriticalPath(Struct, frozen=True, eq=False):
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


def critical_path(run: Measures, lag_ns: Lags) -> CriticalPath:
    """The critical path with these lags."""
    return _undisturbed(run) if lag_ns is undisturbed(run) else _critical(run, lag_ns)


@measure
def _undisturbed(run: Measures) -> CriticalPath:
    return _critical(run, undisturbed(run))


def _critical(run: Measures, lag_ns: Lags) -> CriticalPath:
    return _path_to(run, run_graph(run).last_done, lag_ns)


def path_to_end(run: Measures, lag_ns: Lags) -> CriticalPath:
    """A critical path with these lags that the run ends with, however lags change."""
    return _path_to(run, run_graph(run).ends[-1], lag_ns)


def _path_to(run: Measures, nodes: Int32, lag_ns: Lags) -> CriticalPath:
    """The path to the last of some nodes."""
    its = run_graph(run)
    time = replayed(its.graph, lag_ns)
    last = int(nodes[time[nodes].argmax()])
    own = its.own_of(longest_path(its.graph, lag_ns, time, last))
    own = np.sort(own[own >= 0])
    edges = its.own[own]
    return CriticalPath(own, edges, lag_ns[edges], int(time[last]), steps_at(run, time))


def saves_at_most(paths: Sequence[CriticalPath], change: Change) -> int:
    """What a change saves at most of the first of these paths, the critical path without it."""
    return paths[0].end_ns - max(path.end_with(change) for path in paths)


def at_most(
    run: Measures, path: CriticalPath, own_ns: Int32 | Int64, wanted_ns: Float64
) -> Float64:
    """What each rank takes from the critical path if its work is as wanted."""
    its = run_graph(run)
    call = its.own_call[path.own]
    at = call, its.own_column[path.own]
    factor = factors(own_ns[at], wanted_ns[at])
    size = int(its.calls.rank.max()) + 1
    shorter = path.lag_ns * (1 - factor)
    return np.bincount(its.calls.rank[call], shorter, minlength=size).astype(np.float64)
