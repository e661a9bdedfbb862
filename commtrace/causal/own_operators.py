"""Which operators or kernels a rank runs before a call that the other ranks do not run there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int64, distinct
from commtrace.causal.builder import DEVICES, HOSTS
from commtrace.causal.own_times import OwnTimes, own_times
from commtrace.causal.run_graph import run_graph
from commtrace.diagnosis import Cause
from commtrace.intervals import inside, union
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.metrics.run.run_clock import on_run
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OwnOperators", "alike", "own_operators"]

_NAMED = 3
_COMPARED = 64  # of the other ranks: more tell no more, and each one's operators are read
_APART = 0.5  # of an operator a step: so many more than the others run
_MOST_OF = 0.5  # of the time that they compute longer
_BETWEEN_NS = 200_000  # of Python between two operators, and no more, is what it takes to run them
_COMPILES = re.compile(r"dynamo$|entire_\w+_compile$|.*\(dynamo_timed\)$")
_COMPILATION = re.compile(r"^(Torch-Compiled Region): .*")  # by a number that ranks count apart


class OwnOperators(Struct, frozen=True):
    """What ranks run beyond what others do at the same place, in a step in the mean.

    ``kind`` is ``operators``, or ``kernels`` of ranks on GPUs. ``count`` and ``time_ns`` are of all
    of them, ``names`` those that take longest, first. ``compiling_ns`` is the part of ``time_ns``
    in which torch.compile compiles.
    """

    kind: str
    count: float
    time_ns: float
    compiling_ns: float
    names: tuple[str, ...]

    @property
    def compiles(self) -> bool:
        """Whether compiling is most of it."""
        return self.compiling_ns > _MOST_OF * self.time_ns

    def explains(self, cause: Cause | None, longer_ns: float) -> bool:
        """Whether it is most of what they compute longer in a step, or do in Python meanwhile."""
        if cause == "host":
            return self.count * _BETWEEN_NS >= longer_ns
        return cause == "compute" and self.time_ns >= _MOST_OF * longer_ns


@measure
def own_operators(
    run: Measures, ranks: tuple[int, ...], call: int, steps: tuple[int, ...] = ()
) -> OwnOperators | None:
    """What ranks run more before a call of this place, in all steps or in some.

    ``call`` is one of the graph's, ``steps`` are numbers of its steps. Only what they run oftener
    in a step counts: whether it comes before a call or behind it may be chance. None where no rank
    ran operators, where no other comes there, or where they run no more than others.
    """
    its = run_graph(run)
    calls = its.calls
    chosen = np.asarray(its.steps)[list(steps)] if steps else distinct(calls.step)
    at_place = (calls.place == calls.place[call]) & np.isin(calls.step, chosen)
    table, column = ("ops", HOSTS) if calls.on_cpu[call] else ("kernels", DEVICES)
    there = distinct(calls.rank[at_place])
    mine, others = there[np.isin(there, ranks)], there[~np.isin(there, ranks)]
    names = alike(run.rows(table, slice(0, 0)).coded("name")).names
    if not names or not others.size or not mine.size:
        return None
    spread = np.linspace(0, others.size - 1, min(others.size, _COMPARED)).astype(np.int64)
    work = own_times(run, column)
    work = work.of(at_place[work.call])
    each = (
        [_by_name(run, table, rank, chosen, work) for rank in some.tolist()]
        for some in (mine, others[spread])
    )
    in_step, there_more, time = np.mean(next(each), axis=0) - np.median(next(each), axis=0)
    own = np.minimum(in_step, there_more) >= _APART
    if not own.any():
        return None
    compiles = np.asarray([_COMPILES.match(name) is not None for name in names])
    longest = np.flatnonzero(own)[np.argsort(-time[own], kind="stable")][:_NAMED]
    return OwnOperators(
        kind="operators" if table == "ops" else "kernels",
        count=float(there_more[own].sum()),
        time_ns=float(time[own].sum()),
        compiling_ns=float(time[own & compiles].sum()),
        names=tuple(names[code] for code in longest.tolist()),
    )


def _by_name(run: Measures, table: str, rank: int, steps: Int64, work: OwnTimes) -> Float64:
    """How many of each name a rank ran in a step, how many of them at this place, and how long.

    (3, names): in the mean of those steps that it recorded. What began within its own work there
    is at this place.
    """
    its = run.rows(table, places_of_rank(run, table, rank))
    names = alike(its.coded("name"))
    counts = its.coded("kind").being("compute") & np.isin(its.ints("step"), steps)
    _, *mine = work.of(run_graph(run).calls.rank[work.call] == rank)
    there = counts & inside(on_run(run, rank, its.ints("start_ns")), union(*mine))
    each = (
        (names.codes[counts], None),
        (names.codes[there], None),
        (names.codes[there], its.ints("duration_ns")[there]),
    )
    found = [np.bincount(code, weights, minlength=len(names.names)) for code, weights in each]
    recorded = int(np.isin(steps, its.ints("step")).sum())
    return np.asarray(found) / max(recorded, 1)


def alike(names: Coded) -> Coded:
    """The names of operators, with one code for all compilations of a region."""
    regions = Coded.of([_COMPILATION.sub(r"\1", name) for name in names.names])
    return Coded(regions.codes[names.codes], regions.names)
