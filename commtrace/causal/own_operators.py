"""Which operators or kernels a rank runs before a call that the other ranks do not run there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int32
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
    table = "ops" if calls.on_cpu[call] else "kernels"
    there = np.unique(calls.rank[at_place])
    mine, others = there[np.isin(there, ranks)], there[~np.isin(there, ranks)]
    names = run.rows(table).coded("name").names
    if not names or not others.size or not mine.size:
        return None
    spread = np.linspace(0, others.size - 1, min(others.size, _COMPARED)).astype(np.int64)

    def each(some: Int32) -> list[Float64]:
        return [
            _by_name(run, table, rank, at_place & (calls.rank == rank)) for rank in some.tolist()
        ]

    count, time = np.mean(each(mine), axis=0) - np.median(each(others[spread]), axis=0)
    own = count >= _APART
    longest = np.flatnonzero(own)[np.argsort(-time[own], kind="stable")][:_NAMED]
    return OwnOperators(
        kind="operators" if table == "ops" else "kernels",
        count=float(count[own].sum()),
        time_ns=float(time[own].sum()),
        longer_ns=float(time[~own].sum()),
        names=tuple(names[code] for code in longest.tolist()),
    )


def _by_name(run: Measures, table: str, rank: int, before: Bool) -> Float64:
    """How many of each name a rank ran in its own work before some calls, and how long.

    (2, names): in the mean of these calls. What began within counts.
    """
    its = run.rows(table, places_of_rank(run, table, rank))
    names, computes = its.coded("name"), its.coded("kind").being("compute")
    begin, end = _own_work(run, before, HOSTS if table == "ops" else DEVICES)
    start = on_run(run, rank, its.ints("start_ns"))
    place = np.searchsorted(begin, start, side="right") - 1
    inside = computes & (place >= 0)
    inside[inside] = start[inside] < end[place[inside]]
    code = names.codes[inside]
    weights = (None, its.ints("duration_ns")[inside])
    found = [np.bincount(code, some, minlength=len(names.names)) for some in weights]
    return np.asarray(found) / max(int(before.sum()), 1)


def _own_work(run: Measures, before: Bool, column: int) -> Intervals:
    """When hosts or devices did the own work of these calls (a flag each), on the run's clock."""
    its = run_graph(run)
    edges = its.own[before[its.own_call] & (its.own_column == column)]
    end = its.graph.time_ns[its.graph.target[edges]]
    return union(end - its.graph.lag_ns[edges], end)
