"""Which operators or kernels a rank runs before a call that the other ranks do not run there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, distinct, spread
from commtrace.causal.run.builder import DEVICES, HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.compared_with import compared_with
from commtrace.causal.work.own_times import OwnTimes, own_times, steps_of_work
from commtrace.diagnosis import Cause
from commtrace.intervals import inside, union
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.metrics.run.run_clock import on_run
from commtrace.quantiles import median, medians, quantiles
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OwnOperators", "alike", "own_operators"]

_NAMED = 3
_COMPARED = 64  # ranks, and of the others: more tell no more, and each one's operators are read
_APART = 0.5  # of an operator a step: so many more than the others run
_NEARLY_ALWAYS = 0.75  # of the steps
_MATTERS = 0.01  # of the time of all
_COUNT, _TIME, _MEDIAN = 1, 2, 3  # of what _Ran has in the mean
_MOST_OF = 0.5  # of the time that they compute longer
_BETWEEN_NS = 200_000  # of Python between two operators, and no more, is what it takes to run them
_NEXT_NS = 50_000  # from one operator of a loop to the next, Python's and what recording adds
_COMPILES = re.compile(r"dynamo$|entire_\w+_compile$|.*\(dynamo_timed\)$")
_OF_VOCABULARY = re.compile(r"softmax|cross_?entropy|nll_?loss|embedding", re.IGNORECASE)
_COMPILATION = re.compile(r"^(Torch-Compiled Region): .*")  # by a number that ranks count apart


class OwnOperators(Struct, frozen=True):
    """What ranks run beyond what others do at the same place, in a step in the mean.

    ``kind`` is ``operators``, or ``kernels`` of ranks on GPUs. ``count`` and ``time_ns`` are of all
    of them, ``names`` those that take longest, first, ``only`` those of them that others never run.
    ``only_ns`` is the part of ``time_ns`` of all that others never run, and ``compiling_ns`` that
    in which torch.compile compiles. ``steps_share`` are the steps in which they run more of them.
    """

    kind: str
    count: float
    steps_share: float
    time_ns: float
    only_ns: float
    compiling_ns: float
    names: tuple[str, ...]
    only: tuple[str, ...]

    @property
    def steady(self) -> bool:
        """Whether they run more in nearly every step: in half of them it may be their turn."""
        return self.steps_share >= _NEARLY_ALWAYS

    @property
    def compiles(self) -> bool:
        """Whether compiling is most of it."""
        return self.compiling_ns > _MOST_OF * self.time_ns

    @property
    def of_vocabulary(self) -> bool:
        """Whether others run no such as look up or predict tokens, as a model's ends do."""
        return any(map(_OF_VOCABULARY.search, self.only))

    @property
    def are_no_layers(self) -> bool:
        """Whether most of it are operators that no other runs, and that a model's ends need not."""
        most = self.kind == "operators" and self.only_ns > _MOST_OF * self.time_ns
        return most and not self.of_vocabulary

    def explains(self, cause: Cause | None, longer_ns: float) -> bool:
        """Whether it is most of what they compute longer in a step, or do in Python meanwhile."""
        if cause == "host":
            return self.count * _BETWEEN_NS >= longer_ns
        between_ns = min(self.count * _NEXT_NS, self.time_ns)
        return cause == "compute" and self.time_ns + between_ns >= _MOST_OF * longer_ns


@measure
def own_operators(
    run: Measures,
    ranks: tuple[int, ...],
    call: int,
    steps: tuple[int, ...] = (),
    *,
    everywhere: bool = False,
) -> OwnOperators | None:
    """What ranks run more before a call of this place, in all steps or in some.

    Or ``everywhere``: who is late at several places does a part at each. Where they are a
    pipeline's stage, what they run more in a step than other stages. ``call`` is one of the
    graph's, ``steps`` are numbers of its steps. Only what they run oftener in a step counts:
    whether it comes before a call or behind it may be chance. None where no rank ran operators,
    where no other comes there, or where they run no more than others.
    """
    its = run_graph(run)
    calls = its.calls
    chosen = np.asarray(its.steps)[list(steps)] if steps else distinct(calls.step)
    mine, others, which, whole_steps = compared_with(run, ranks, call, everywhere=everywhere)
    which = which & np.isin(calls.step, chosen)
    table, column = ("ops", HOSTS) if calls.on_cpu[call] else ("kernels", DEVICES)
    names = alike(run.rows(table, slice(0, 0)).coded("name")).names
    if not names or not others.size or not mine.size:
        return None
    work = own_times(run, column)
    theirs, usual = (
        [
            _by_name(run, table, rank, chosen, work, which)
            for rank in some[spread(some.size, _COMPARED)].tolist()
        ]
        for some in (mine, others)
    )
    ours = np.mean([one.mean for one in theirs], axis=0)
    typical = medians([one.mean for one in usual], axis=0)
    if whole_steps:
        typical[_TIME] *= _times_as_long(ours, typical)
    in_step, there_more, time, _ = ours - typical
    own = np.minimum(in_step, there_more) >= _APART
    if not own.any():
        return None
    ran = np.mean([one.steps[:, own].sum(axis=1) for one in theirs], axis=0)
    ran -= medians([one.steps[:, own].sum(axis=1) for one in usual], axis=0)
    only = own & (typical[0] == 0)
    compiles = np.asarray([_COMPILES.match(name) is not None for name in names])
    longest = np.flatnonzero(own)[np.argsort(-time[own], kind="stable")][:_NAMED]
    return OwnOperators(
        kind="operators" if table == "ops" else "kernels",
        count=float(there_more[own].sum()),
        steps_share=float((ran >= _APART).mean()),
        time_ns=float(time[own].sum()),
        only_ns=float(time[only].sum()),
        compiling_ns=float(time[own & compiles].sum()),
        names=tuple(names[code] for code in longest.tolist()),
        only=tuple(names[code] for code in longest.tolist() if only[code]),
    )


def _times_as_long(ours: Float64, typical: Float64) -> Float64:
    """Of each name how many times as long as others' one takes that all run.

    What a slow device runs as often, or on more, is none that it runs more. That is so in the
    median of the names, since of some, as of a kernel that multiplies matrices, one stage has
    other work besides; or in the median of a name's own, if that is longer.
    """
    least = max(_MATTERS * float(typical[_TIME].sum()), 1.0)
    matter = np.minimum(ours[_COUNT], typical[_COUNT]) >= _APART
    matter &= typical[_TIME] >= least
    times = np.ones(matter.size)
    if matter.any():
        mine, others = ours[:, matter], typical[:, matter]
        each = (mine[_TIME] / mine[_COUNT]) / (others[_TIME] / others[_COUNT])
        times[:] = median(each)
        usual = mine[_MEDIAN] / np.maximum(others[_MEDIAN], 1)
        times[matter] = np.maximum(times[matter], usual)
    return times


class _Ran(NamedTuple):
    """What a rank ran of each name: in each step how many (steps × names), and in the mean.

    That is of the steps that it recorded: how many, how many at one place, how long these take in
    all, and how long one of them in the median (4 × names).
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
    took = its.ints("duration_ns")[there]
    times = np.bincount(name_there, took, count)
    recorded = max(int(np.isin(steps, step).sum()), 1)
    each = (in_steps.sum(axis=0), np.bincount(name_there, minlength=count), times)
    median = np.nan_to_num(quantiles(name_there, took, 50, count))
    return _Ran(in_steps, np.vstack((np.asarray(each) / recorded, median)))


def alike(names: Coded) -> Coded:
    """The names of operators, with one code for all compilations of a region."""
    regions = Coded.of([_COMPILATION.sub(r"\1", name) for name in names.names])
    return Coded(regions.codes[names.codes], regions.names)
