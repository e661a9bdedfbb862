"""Who may delay a run: ranks whose work, made typical, makes its steps shorter."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from commtrace.arrays import Bool, Float64, Int64, distinct
from commtrace.causal.blame.kind import Kind
from commtrace.causal.blame.search import (
    Search,
    Suspects,
    least_noise_ns,
)
from commtrace.causal.blame.sets import known_sets
from commtrace.causal.blame.sure import (
    computing_alike,
    more_surely_ns,
    saved_surely,
    wanted_ns,
    without_more,
)
from commtrace.causal.edits.bounds import critical_path
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import (
    even,
    of_ranks,
    of_the_rest,
    saved_by,
    typical,
    typical_in_median,
    wanted_in_median,
)
from commtrace.causal.edits.stage_edits import even_stages
from commtrace.causal.replay.graph import Change, Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.cores import works_more
from commtrace.causal.work.segments import OwnWork, idle_ns, work_on_cores
from commtrace.measures import measure
from commtrace.metrics.run.stages import other_stages
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "beyond_typical",
    "edit_of",
    "late_together",
    "own_and_more",
    "saved_evenly",
    "suspects",
    "suspects_in_median",
]

_BEHIND = 0.25  # of what the last is late: who is late, too
_ALIKE = 0.4  # of what it saves where all compute alike, it saves as they do compute
_NEARLY = 0.75  # of what they save if all their work is typical
_TOGETHER = 0.6  # of the others of a set, in the steps that it delays


def saved_evenly(run: Measures, lag_ns: Lags, work: OwnWork, but: Collection[int] = ()) -> Int64:
    """What each step is shorter than with these lags if all ranks but some work as ``even`` has it.

    With ``undisturbed``, or edits of these, and the ``work`` with them.
    """
    if lag_ns is undisturbed(run) and not but:
        return _all_evenly(run)
    return saved_by(run, lag_ns, [even(run, lag_ns, but, work)])[:, 0]


@measure
def _all_evenly(run: Measures) -> Int64:
    lag = undisturbed(run)
    return saved_by(run, lag, [even(run, lag, (), work_on_cores(run, lag))])[:, 0]


def edit_of(run: Measures, who: Suspects, lag_ns: Lags, work: OwnWork) -> Change:
    """What changes of these lags without what they do more than is typical."""
    if who.made == "median":
        return typical_in_median(run, who.ranks, lag_ns, work, wanted_in_median(run, work))
    if who.made == "sure":
        return without_more(run, who.ranks, lag_ns, work)
    if who.made == "shared":
        return even_stages(run, lag_ns, work)
    return typical(run, who.ranks, lag_ns, work=work)


def own_and_more(run: Measures, who: Suspects, lag_ns: Lags) -> tuple[Bool, Float64, Float64]:
    """Which calls are theirs; their own work before each, and how much of it is beyond the typical.

    With these lags, and of what was made typical.
    """
    work, mine = work_on_cores(run, lag_ns), of_ranks(run, who.ranks)
    more = beyond_typical(run, who.ranks, work)
    if who.made == "sure":
        more = np.nan_to_num(more_surely_ns(run, who.ranks))
    return mine, work.own_ns[mine].sum(axis=1).astype(np.float64), more[mine]


def beyond_typical(run: Measures, ranks: Collection[int], work: OwnWork) -> Float64:
    """How much of each call's own work is beyond the typical of another rank.

    Of a pipeline's stage of several ranks, of the other stages: at its places are only themselves.
    """
    more = work.excess_ns
    if len(ranks) > 1 and other_stages(run, ranks):
        mine = of_ranks(run, ranks)
        longer = np.nan_to_num(work.own_ns[mine] - of_the_rest(run, ranks, work, mine))
        more[mine] = longer.sum(axis=1)
    return more


def late_together(run: Measures, who: Suspects, lag_ns: Lags) -> bool:
    """Whether most of them are late in the same steps, or one host or group: turns are no set."""
    its, count = run_graph(run), len(who.ranks)
    if who.ranks in known_sets(run, distinct(its.calls.rank).tolist()):
        return True
    mine, _, more = own_and_more(run, who, lag_ns)
    beyond = np.zeros(mine.size)
    beyond[mine] = more
    every, did = its.by_cell(beyond)
    late = did[np.isin(every, who.ranks)]
    last = np.maximum(late.max(axis=0), 0.0)
    others = (late > _BEHIND * last).sum(axis=0) - 1
    return bool((others * last).sum() >= _TOGETHER * (count - 1) * last.sum())


def suspects(run: Measures, left: list[int], lag_ns: Lags, least_ns: float) -> list[Suspects]:
    """Those of the ranks ``left`` whose typical work saves at least so much in all, the most first.

    On CPUs also without what they surely do more: where processes share cores what all compute
    takes long by turns. That is first if it is nearly as much.
    """
    work = work_on_cores(run, lag_ns)  # those mended before are typical of the others, too
    path = critical_path(run, lag_ns)

    def wanted(ranks: tuple[int, ...], which: Bool) -> Float64:
        return of_the_rest(run, ranks, work, which)

    kind = Kind(run, lag_ns, work, path, wanted, work.typical_ns, "all")
    found = [_of_kind(left, least_ns, kind)]
    on_cpus = bool(run_graph(run).calls.on_cpu.any())
    # Without operators the time without them is all, and the edit is the same.
    if on_cpus and (idle_ns(run) != work.own_ns.sum(axis=1)).any():
        found.append(_surely(run, left, lag_ns, least_ns))
    return sorted((one for one in found if one), key=_first, reverse=True)


def _first(who: Suspects) -> float:
    return float(who.steps_ns.sum()) / (_NEARLY if who.made == "sure" else 1)


def _surely(run: Measures, left: list[int], lag_ns: Lags, least_ns: float) -> Suspects | None:
    """Ranks that surely do more, found where all ``left`` compute alike what they have in common.

    None if what that saves is mostly the effect of computing alike.
    """
    if len(left) < 2:
        return None
    before = work_on_cores(run, lag_ns)
    alike = computing_alike(run, left, lag_ns, before)
    work = work_on_cores(run, alike)

    def wanted(ranks: tuple[int, ...], which: Bool) -> Float64:
        return wanted_ns(run, work, ranks)[which]

    path = critical_path(run, alike)
    kind = Kind(run, alike, work, path, wanted, wanted_ns(run, work), "sure")
    found = _of_kind(left, least_ns, kind)
    if found is None:
        return None
    if saved_surely(run, found.ranks, lag_ns).sum() < _ALIKE * found.steps_ns.sum():
        return None
    return structs.replace(found, edit=without_more(run, found.ranks, lag_ns, before))


def suspects_in_median(
    run: Measures, left: list[int], lag_ns: Lags, least_ns: float
) -> list[Suspects]:
    """The one of them whose work, if typical in the median of the steps, saves at least so much.

    Where ranks take turns being late, and one is late besides. Nobody where turns cost little.
    """
    work = work_on_cores(run, lag_ns)
    # To do as the mean of two does saves half of what one of them is late.
    if saved_evenly(run, lag_ns, work).sum() < least_ns / 2:
        return []

    wanted_ns = wanted_in_median(run, work)

    def wanted(_ranks: tuple[int, ...], which: Bool) -> Float64:
        return wanted_ns[which]

    kind = Kind(run, lag_ns, work, critical_path(run, lag_ns), wanted, wanted_ns, "median")
    search = Search(left, least_ns, kind)
    found = search.single() or search.apart()
    beyond = found is not None and median(found.steps_ns) > least_noise_ns(run)
    return [found] if found is not None and beyond else []


def _of_kind(left: list[int], least_ns: float, kind: Kind) -> Suspects | None:
    # Where processes share cores the one that works more keeps others from theirs.
    sure = kind.made == "sure"
    working = [] if sure else [rank for rank in left if works_more(kind.run, (rank,))]
    if working and (found := Search(working, least_ns, kind).single()):
        return found
    search = Search(left, least_ns, kind)
    return search.single() or search.several()
