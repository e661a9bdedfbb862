"""Which CPU operators a rank runs before a call that the other ranks do not run there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64
from commtrace.causal.builder import HOSTS
from commtrace.causal.run_graph import run_graph
from commtrace.intervals import Intervals, union
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OwnOperators", "own_operators"]

_NAMED = 3
_APART = 0.5  # of an operator a step: so many more than the others run


class OwnOperators(Struct, frozen=True):
    """Operators beyond those that other ranks run at the same place, in a step in the mean.

    ``count`` and ``time_ns`` are of all of them, ``names`` those that take longest, first.
    ``longer_ns`` is what operators that all run take longer.
    """

    count: float
    time_ns: float
    longer_ns: float
    names: tuple[str, ...]


def own_operators(
    run: Measures, ranks: Collection[int], call: int, steps: Sequence[int] = ()
) -> OwnOperators | None:
    """What ranks run more before a call of this place, in all steps or in some.

    ``call`` is one of the graph's, ``steps`` are numbers of its steps. None where no rank ran
    operators, or where no other comes there.
    """
    calls = run_graph(run).calls
    at_place = calls.place == calls.place[call]
    if steps:
        at_place &= np.isin(calls.step, np.unique(calls.step)[list(steps)])
    there = np.unique(calls.rank[at_place]).tolist()
    names = run.rows("ops").coded("name").names
    each = {rank: _by_name(run, rank, at_place & (calls.rank == rank)) for rank in there}
    others = [its for rank, its in each.items() if rank not in ranks]
    mine = [its for rank, its in each.items() if rank in ranks]
    if not names or not others or not mine:
        return None
    more = np.mean(mine, axis=0) - np.median(others, axis=0)
    count, time = more
    own = count >= _APART
    longest = np.flatnonzero(own)[np.argsort(-time[own], kind="stable")][:_NAMED]
    return OwnOperators(
        count=float(count[own].sum()),
        time_ns=float(time[own].sum()),
        longer_ns=float(time[~own].sum()),
        names=tuple(names[code] for code in longest.tolist()),
    )


def _by_name(run: Measures, rank: int, before: Bool) -> Float64:
    """How many of each operator a rank ran in its own work before some calls, and how long.

    (2, names): in the mean of these calls. What began within counts.
    """
    its = run.rows("ops", places_of_rank(run, "ops", rank))
    names, computes = its.coded("name"), its.coded("kind").being("compute")
    begin, end = _own_work(run, before)
    start = on_run(run, rank, its.ints("start_ns"))
    place = np.searchsorted(begin, start, side="right") - 1
    inside = computes & (place >= 0)
    inside[inside] = start[inside] < end[place[inside]]
    code = names.codes[inside]
    weights = (None, its.ints("duration_ns")[inside])
    found = [np.bincount(code, some, minlength=len(names.names)) for some in weights]
    return np.asarray(found) / max(int(before.sum()), 1)


def _own_work(run: Measures, before: Bool) -> Intervals:
    """When hosts did the own work of these calls (a flag for each), on the run's clock."""
    its = run_graph(run)
    edges = its.own[before[its.own_call] & (its.own_column == HOSTS)]
    end = its.graph.time_ns[its.graph.target[edges]]
    return union(end - its.graph.lag_ns[edges], end)
