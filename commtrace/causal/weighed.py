"""How surely suspects delay a run, by how much, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.awaited import awaited
from commtrace.causal.causes import doubt_of
from commtrace.causal.chance import above_zero
from commtrace.causal.cores import fight, works_more
from commtrace.causal.culprit import Culprit
from commtrace.causal.done_more import DoneMore, counted_more, done_more, slower
from commtrace.causal.edits import (
    as_measured,
    of_ranks,
    saved,
    saved_by,
    step_ns,
    typical,
    typical_in_median,
    wanted_in_median,
)
from commtrace.causal.graph import Change, Lags
from commtrace.causal.inputs import others_in_turn
from commtrace.causal.on_core import lags_on_cores
from commtrace.causal.recorded_steps import steps_in_common
from commtrace.causal.run_graph import run_graph
from commtrace.causal.search import Suspects, by_rank_and_step, least_noise_ns
from commtrace.causal.segments import OwnWork, own_work, work_on_cores
from commtrace.causal.step_patterns import CHANCE, MANY_STEPS, in_every, in_few, scatter, since
from commtrace.causal.sure import without_more
from commtrace.causal.suspects import own_and_more
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import on_hosts_of_their_own

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["CHANCE_IF_COUNTED", "edit_of", "weighed"]

CHANCE_IF_COUNTED = 0.05
"""``CHANCE`` of ranks that run what others do not, or on more."""
_MOSTLY = 0.5  # of the steps
_ON_CORES = ("compute", "garbage-collection")  # what takes a core all the time
_HALF = 0.5  # of a stall, as another stalls by turns
_LENT = 1.7  # of half a core: what its other half runs takes the rest
_NOT_ALWAYS = "its process takes more processor time than the others', but not every step waits"


def edit_of(run: Measures, who: Suspects, lag_ns: Lags, work: OwnWork) -> Change:
    """What changes of these lags without what they do more than is typical."""
    if who.made == "median":
        return typical_in_median(run, who.ranks, lag_ns, work, wanted_in_median(run, work))
    if who.made == "sure":
        return without_more(run, who.ranks, lag_ns, work)
    return typical(run, who.ranks, lag_ns, work=work)


def weighed(run: Measures, who: Suspects, ranks: int, lag_ns: Lags) -> Culprit:
    """The culprit that they are on top of the edits that made these lags."""
    before, alone, steps = lags_on_cores(run), who.steps_ns, who.steps_ns
    if lag_ns is not before:
        edited = edit_of(run, who, before, work_on_cores(run, before))
        alone = saved_by(run, before, [edited])[:, 0]
    (own, beyond), least = _by_step(run, who, lag_ns), least_noise_ns(run)
    # What was before the first call of a run that is cut is not whole.
    first = int(run_graph(run).is_cut and own.size > 1)
    # Between calls work may be of steps that have none, which say nothing of what is in every one.
    # Nor do steps that others did not record.
    both = steps_in_common(run, who.ranks)
    calls, in_all = (own > 0)[first:] & both[first:], beyond[first:][both[first:]]
    own, more = own[first:][calls], beyond[first:][calls]
    noise = max(scatter(more), least)
    after = step_ns(run, [lag_ns])[:, 0] - steps
    shared = steps[both]
    few = since(shared, least) or in_few(shared, in_all, least, after[both])
    spikes = tuple(np.flatnonzero(both)[list(few)].tolist())
    does = done_more(run, who)
    longer = _longer_for_cores(run, who.ranks) if does.cause in _ON_CORES else 1.0
    delays = np.rint(steps * longer).astype(np.int64)
    whole = steps[:-1][both[:-1]] if run_graph(run).is_cut else shared
    # What is cut saves less, never more: either way of counting it is safe. Where others are later
    # in some steps nothing is saved there, though the ranks do as much more as in the rest.
    tested = (whole, shared, more) if more.size >= MANY_STEPS else (whole, shared)
    p_value = min(1.0, *(above_zero(some.astype(np.float64)) * ranks for some in tested))
    # Few steps say little of how they scatter; what no fight for cores explains is no noise.
    # Nor is what others do not run at all, or on less.
    is_few = own.size < MANY_STEPS
    maybe = p_value < CHANCE_IF_COUNTED and not spikes and not _take_turns(run, who, does)
    counted = counted_more(run, who, does) if is_few or maybe else None
    far = is_few and (
        bool((own > fight(run, who.ranks) * (own - more)).all()) or counted is not None
    )
    unlikely = p_value < CHANCE or (maybe and counted is not None)
    persistent = in_every(whole, more, least if far else noise, least, unlikely=unlikely)
    if spikes and not persistent and _in_turn(run, lag_ns, np.sort(beyond)[-len(spikes) :]):
        spikes = ()
    stalls = () if persistent else spikes
    does = done_more(run, who, stalls) if stalls else does
    mostly = who.made != "sure" and float((more > 0).mean()) >= _MOSTLY
    works = not persistent and not spikes and mostly and works_more(run, who.ranks)
    works = works and not _take_turns(run, who, does)
    times = None
    if persistent or stalls or works:
        counted = counted_more(run, who, does)
        times = slower(run, who, does) if counted is None else None
    saved_ns = int(delays.sum())
    if works:
        doubt: str | None = _NOT_ALWAYS
    else:
        doubt = _doubt(run, who, does, saved_ns, counted is not None, times, is_few=is_few)
    return Culprit(
        ranks=who.ranks,
        saved_ns=round(float(alone.sum()) * longer),
        on_top_ns=saved_ns,
        replayed_step_ns=int(np.median(after + _waiting_ns(run) - (delays - steps))),
        steps_ns=delays,
        noise_ns=noise,
        p_value=p_value,
        persistent=persistent or works,
        in_every=persistent,
        spikes=spikes,
        others_ns=round(who.others_ns * longer),
        cause=does.cause,
        parts_ns=does.parts_ns,
        call=does.call,
        waits=awaited(run, who.ranks, lag_ns),
        in_median=who.made == "median",
        more=counted,
        slower=times,
        doubt=doubt,
    )


def _doubt(
    run: Measures,
    who: Suspects,
    does: DoneMore,
    saved_ns: int,
    counted: bool,
    times: float | None,
    *,
    is_few: bool,
) -> str | None:
    """Why it may not be they; ``times`` as long they take for the same, if that is what they do.

    Few steps say little of that; and who has half of a core that another process shares takes up
    to ``_LENT`` times as long without waiting for it.
    """
    sure = counted or (who.made == "sure" and does.cause == "compute")
    doubt = doubt_of(run, who.ranks, saved_ns, does.cause, does.stalls, sure=sure)
    if doubt is None and times is not None and run_graph(run).calls.on_cpu.any():
        longer = f"the same work takes {times:.2f} times as long there"
        if is_few:
            return f"{longer}, as it can in few steps"
        if times < _LENT and not on_hosts_of_their_own(run, who.ranks):
            return f"{longer}, as it can on a core that another process shares"
    return doubt


def _take_turns(run: Measures, who: Suspects, does: DoneMore) -> bool:
    """Whether others have more to compute in other steps; their files are read for that."""
    return does.cause == "compute" and others_in_turn(run, who.ranks)


def _longer_for_cores(run: Measures, ranks: tuple[int, ...]) -> float:
    """How many times as long these ranks' work took since they waited for cores.

    They wait while they have work to do: what they do less they do not wait for.
    """
    its = own_work(run)
    if its.waited_ns is None:
        return 1.0
    mine = of_ranks(run, ranks)
    return 1 + float(its.waited_ns[mine].sum() / max(its.own_ns[mine].sum(), 1))


def _in_turn(run: Measures, lag_ns: Lags, stalls_ns: Float64) -> bool:
    """Whether as many ranks as can stall, each in steps of its own, half as long at least."""
    calls, excess = run_graph(run).calls, work_on_cores(run, lag_ns).excess_ns
    _, late = by_rank_and_step(calls, excess)
    stalls = late >= _HALF * stalls_ns.mean()
    in_turn = min(int(stalls.any(axis=side).sum()) for side in (0, 1))
    return in_turn > 1 and in_turn == min(stalls.shape)


@measure
def _waiting_ns(run: Measures) -> Int64:
    """What each step is longer since threads waited for cores, as far as it is known."""
    measured, without = as_measured(run), lags_on_cores(run)
    if without is measured:
        return np.zeros(len(run_graph(run).ends), dtype=np.int64)
    return saved(run, measured, [without])[:, 0]


def _by_step(run: Measures, who: Suspects, lag_ns: Lags) -> tuple[Float64, Float64]:
    """What the ranks did in each step, and how much of it beyond the typical, with these lags.

    Of what was made typical, each one's mean.
    """
    its, (mine, *each) = run_graph(run), own_and_more(run, who, lag_ns)
    steps, count = its.step_of[mine], len(its.steps)
    own, beyond = (np.bincount(steps, some, count) / len(who.ranks) for some in each)
    return own, beyond
