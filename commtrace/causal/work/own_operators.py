"""Which operators or kernels a rank runs before a call that the other ranks do not run there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, distinct
from commtrace.causal.run.builder import DEVICES, HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.own_times import OwnTimes, own_times, steps_of_work
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
_NEARLY_ALWAYS = 0.75  # of the steps
_MOST_OF = 0.5  # of the time that they compute longer
_BETWEEN_NS = 200_000  # of Python between two operators, and no more, is what it takes to run them
_COMPILES = re.compile(r"dynamo$|entire_\w+_compile$|.*\(dynamo_timed\)$")
_COMPILATION = re.compile(r"^(Torch-Compiled Region): .*")  # by a number that ranks count apart


class OwnOperators(Struct, frozen=True):
    """What ranks run beyond what others do at the same place, in a step in the mean.

    ``kind`` is ``operators``, or ``kernels`` of ranks on GPUs. ``count`` and ``time_ns`` are of all
    of them, ``names`` those that take longest, first. ``compiling_ns`` is the part of ``time_ns``
    in which torch.compile compiles. ``steps_share`` are the steps in which they run more of them.
    """

    kind: str
    count: float
    steps_share: float
    time_ns: float
    compiling_ns: float
    names: tuple[str, ...]

    @property
    def steady(self) -> bool:
        """Whether they run more in nearly every step: in half of them it may be their turn."""
        return self.steps_share >= _NEARLY_ALWAYS

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
    theirs, usual = (
        [_by_name(run, table, rank, chosen, work, at_place) for rank in some.tolist()]
        for some in (mine, others[spread])
    )
    more = np.mean([one.mean for one in theirs], axis=0)
    more -= np.median([one.mean for one in usual], axis=0)
    in_step, there_more, time = more
    own = np.minimum(in_step, there_more) >= _APART
    if not own.any():
        return None
    ran = np.mean([one.steps[:, own].sum(axis=1) for one in theirs], axis=0)
    ran -= np.median([one.steps[:, own].sum(axis=1) for one in usual], axis=0)
    compiles = np.asarray([_COMPILES.match(name) is not None for name in names])
    longest = np.flatnonzero(own)[np.argsort(-time[own], kind="stable")][:_NAMED]
    return OwnOperators(
        kind="operators" if table == "ops" else "kernels",
        count=float(there_more[own].sum()),
        steps_share=float((ran >= _APART).mean()),
        time_ns=float(time[own].sum()),
        compiling_ns=float(time[own & compiles].sum()),
        names=tuple(names[code] for code in longest.tolist()),
    )


class _Ran(NamedTuple):
    """What a rank ran of each name: in each step how many (steps × names), and in the mean.

    That is of the steps that it recorded: how many, how many at one place, how long (3 × names).
    """

    steps: Int64
    mean: Float64


def _by_name(
    run: Measures, table: str, rank: int, steps: Int64, work: OwnTimes, at_place: Bool
) -> _Ran:
    """What a rank ran in some steps; what began within its own work there is at this place."""
    its = run.rows(table, places_of_rank(run, table, rank))
    names, began = alike(its.coded("name")), its.ints("start_ns")
    step = steps_of_work(run, rank, began, its.ints("step"), work)
    counts = its.coded("kind").being("compute") & np.isin(step, steps)
    mine = at_place & (run_graph(run).calls.rank == rank)
    _, *when = work.of(mine[work.call])
    there = counts & inside(on_run(run, rank, began), union(*when))
    count = len(names.names)
    cell = np.searchsorted(steps, step[counts]) * count + names.codes[counts]
    in_steps = np.bincount(cell, minlength=steps.size * count).reshape(-1, count)
    name_there = names.codes[there]
    times = np.bincount(name_there, its.ints("duration_ns")[there], count)
    recorded = max(int(np.isin(steps, step).sum()), 1)
    each = (in_steps.sum(axis=0), np.bincount(name_there, minlength=count), times)
    return _Ran(in_steps, np.asarray(each) / recorded)


def alike(names: Coded) -> Coded:
    """The names of operators, with one code for all compilations of a region."""
    regions = Coded.of([_COMPILATION.sub(r"\1", name) for name in names.names])
    return Coded(regions.codes[names.codes], regions.names)
