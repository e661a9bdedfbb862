"""Which operators or kernels a rank runs before a call that the other ranks do not run there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int32, Int64
from commtrace.causal.builder import DEVICES, HOSTS
from commtrace.causal.run_graph import run_graph
from commtrace.intervals import Intervals, union
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OwnOperators", "own_operators"]

_NAMED = 3
_COMPARED = 64  # of the other ranks: more tell no more, and each one's operators are read
_APART = 0.5  # of an operator a step: so many more than the others run


class OwnOperators(Struct, frozen=True):
    """What a rank runs beyond what others do at the same place, in a step in the mean.

    ``kind`` is ``operators``, or ``kernels`` of ranks on GPUs. ``count`` and ``time_ns`` are of all
    of them, ``names`` those that take longest, first. ``longer_ns`` is what those that all run
    take longer.
    """

    kind: str
    count: float
    time_ns: float
    longer_ns: float
    names: tuple[str, ...]


def own_operators(
    run: Measures, ranks: Sequence[int], call: int, steps: Sequence[int] = ()
) -> OwnOperators | None:
    """What ranks run more before a call of this place, in all steps or in some.

    ``call`` is one of the graph's, ``steps`` are numbers of its steps. None where no rank ran
    operators, or where no other comes there.
    """
    calls = run_graph(run).calls
    at_place = calls.place == calls.place[call]
    if steps:
        at_place &= np.isin(calls.step, np.unique(calls.step)[list(steps)])
    table, column = ("ops", HOSTS) if calls.on_cpu[call] else ("kernels", DEVICES)
    there, count = np.unique(calls.rank[at_place], return_counts=True)
    mine, others = (np.flatnonzero(np.isin(there, ranks) == is_mine) for is_mine in (True, False))
    names = run.rows(table, slice(0, 0)).coded("name").names
    if not names or not others.size or not mine.size:
        return None
    work = _OwnTimes.of(run, at_place, column)
    spread = np.linspace(0, others.size - 1, min(others.size, _COMPARED)).astype(np.int64)
    each = (
        [_by_name(run, table, int(there[at]), work) / count[at] for at in some.tolist()]
        for some in (mine, others[spread])
    )
    more, time = np.mean(next(each), axis=0) - np.median(next(each), axis=0)
    own = more >= _APART
    longest = np.flatnonzero(own)[np.argsort(-time[own], kind="stable")][:_NAMED]
    return OwnOperators(
        kind="operators" if table == "ops" else "kernels",
        count=float(more[own].sum()),
        time_ns=float(time[own].sum()),
        longer_ns=float(time[~own].sum()),
        names=tuple(names[code] for code in longest.tolist()),
    )


class _OwnTimes(NamedTuple):
    """When ranks did the own work of some calls, on the run's clock."""

    rank: Int32
    begin_ns: Int64
    end_ns: Int64

    @classmethod
    def of(cls, run: Measures, before: Bool, column: int) -> _OwnTimes:
        """That of hosts or of devices before these calls (a flag for each)."""
        its = run_graph(run)
        which = np.flatnonzero(before[its.own_call] & (its.own_column == column))
        edges = its.own[which]
        end = its.graph.time_ns[its.graph.target[edges]]
        return cls(its.calls.rank[its.own_call[which]], end - its.graph.lag_ns[edges], end)

    def of_rank(self, rank: int) -> Intervals:
        """One rank's."""
        mine = self.rank == rank
        return union(self.begin_ns[mine], self.end_ns[mine])


def _by_name(run: Measures, table: str, rank: int, work: _OwnTimes) -> Float64:
    """How many of each name began within a rank's own work, and how long they took: (2, names)."""
    its = run.rows(table, places_of_rank(run, table, rank))
    names, computes = its.coded("name"), its.coded("kind").being("compute")
    begin, end = work.of_rank(rank)
    start = on_run(run, rank, its.ints("start_ns"))
    place = np.searchsorted(begin, start, side="right") - 1
    inside = computes & (place >= 0)
    inside[inside] = start[inside] < end[place[inside]]
    code = names.codes[inside]
    weights = (None, its.ints("duration_ns")[inside])
    return np.asarray([np.bincount(code, some, minlength=len(names.names)) for some in weights])
