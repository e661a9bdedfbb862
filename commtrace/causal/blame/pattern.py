"""In which steps suspects delay a run beyond chance: in every one, in few, or mostly."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Float64, Int64, distinct
from commtrace.causal.blame.by_step import ByStep, Seen, by_step, excess_by_step, seen_in
from commtrace.causal.blame.done_more import DoneMore, counted_more, done_more
from commtrace.causal.blame.search import Suspects, least_noise_ns
from commtrace.causal.blame.step_patterns import (
    CHANCE,
    CHANCE_IF_COUNTED,
    MANY_STEPS,
    SPIKE_IF_COUNTED,
    in_every,
    in_few,
    in_most,
    scatter,
    since,
    steady,
)
from commtrace.causal.blame.sure import more_surely_ns
from commtrace.causal.chance import above_zero
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.cores import fight, works_more
from commtrace.causal.work.inputs import others_in_turn
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.causal.work.segments import own_work
from commtrace.diagnosis import HOST_CAUSES
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Pattern", "pattern"]

_MOSTLY = 0.5  # of the steps
_HALF = 0.5  # of a stall, as another stalls by turns


class Pattern(NamedTuple):
    """Whether it is ``in_every`` step; ``spikes`` are the steps that hold most of it, if few do.

    ``stalls`` are those in which they did what these wait for: of others it may be the step before.
    ``works``: in neither, but its processes take more processor time than the others', and in most
    steps it does more; ``pauses``: in neither, but in all of them it runs no operator for about as
    much longer. ``p_value`` is the chance that nothing is saved, corrected for the ranks
    tried, ``noise_ns`` the scatter of what they do more; of ``few_steps`` little is known of that.
    ``saved_ns`` is what is saved by step, in which they do it.
    """

    in_every: bool
    spikes: tuple[int, ...]
    stalls: tuple[int, ...]
    works: bool
    pauses: bool
    p_value: float
    noise_ns: float
    few_steps: bool
    saved_ns: Int64

    @property
    def persistent(self) -> bool:
        """Whether it is no matter of a few steps."""
        return self.in_every or self.works or self.pauses


def pattern(run: Measures, who: Suspects, ranks: int, lag_ns: Lags, does: DoneMore) -> Pattern:
    """That of suspects among so many ranks, on top of the edits that made these lags."""
    each = by_step(run, who, lag_ns)
    seen = seen_in(run, who, lag_ns, each)
    noise_ns = max(scatter(seen.more), least_noise_ns(run))
    p_value = _by_chance(seen, ranks)
    spikes = _spikes(run, seen, ranks)
    always = _always(run, who, does, seen, spikes, p_value, noise_ns)
    if not always:
        spikes = spikes or _of_its_own(run, who, seen)
        if spikes and (
            _in_vain(run, does, each, spikes) or _in_turn(run, who, lag_ns, each, spikes)
        ):
            spikes = ()
    neither = not always and not spikes
    return Pattern(
        in_every=always,
        spikes=spikes,
        stalls=_stalls(each.beyond, spikes),
        works=neither and _works(run, who, does, seen),
        pauses=neither and _pauses(run, who, does, seen),
        p_value=p_value,
        noise_ns=noise_ns,
        few_steps=seen.are_few,
        saved_ns=each.saved,
    )


def _spikes(run: Measures, seen: Seen, ranks: int) -> tuple[int, ...]:
    """The steps that hold most of it, far above the noise of the others."""
    least_ns = least_noise_ns(run)
    which = (
        since(seen.saved, least_ns)
        or in_most(seen.saved, least_ns, ranks)
        or in_few(seen.saved, seen.beyond, least_ns, seen.left)
    )
    return tuple(seen.step[list(which)].tolist())


def _always(
    run: Measures,
    who: Suspects,
    does: DoneMore,
    seen: Seen,
    spikes: tuple[int, ...],
    p_value: float,
    noise_ns: float,
) -> bool:
    """Whether they delay every step.

    Few steps say little of how they scatter; what no fight for cores explains is no noise. Nor is
    what others do not run at all, or on less.
    """
    least_ns = least_noise_ns(run)
    maybe = p_value < CHANCE_IF_COUNTED and not spikes and not _take_turns(run, who, does)
    counted = counted_more(run, who, does) if seen.are_few or maybe else None
    by_turns = isinstance(counted, OwnOperators) and not counted.steady
    unlikely = p_value < CHANCE or (maybe and counted is not None and not by_turns)
    if seen.are_few and (counted is not None or _no_fight(run, who, seen)):
        noise_ns = least_ns
    return in_every(seen.whole, seen.more, noise_ns, least_ns, unlikely=unlikely)


def _no_fight(run: Measures, who: Suspects, seen: Seen) -> bool:
    """Whether in every step they take longer than a fight for cores explains."""
    return bool((seen.own > fight(run, who.ranks) * (seen.own - seen.more)).all())


def _works(run: Measures, who: Suspects, does: DoneMore, seen: Seen) -> bool:
    """Whether in most steps they do more, and their processes take more processor time."""
    mostly = (seen.more > 0).sum() >= max(_MOSTLY * seen.more.size, 1)
    more = who.made != "sure" and mostly and works_more(run, who.ranks)
    return more and not _take_turns(run, who, does)


def _pauses(run: Measures, who: Suspects, does: DoneMore, seen: Seen) -> bool:
    """Whether they run no operator for about as much longer in all steps, waits for cores aside."""
    idle = who.made == "sure" and does.cause not in (None, "compute")
    known = own_work(run).waited_ns is not None
    return idle and known and steady(seen.more, least_noise_ns(run))


def _of_its_own(run: Measures, who: Suspects, seen: Seen) -> tuple[int, ...]:
    """The steps that hold most of it, if they run there what others do not: that is no noise.

    Of few steps, or where it is sure that they do it.
    """
    if not seen.are_few and who.made != "sure":
        return ()
    least = least_noise_ns(run)
    few = list(in_few(seen.saved, seen.beyond, least, seen.left, SPIKE_IF_COUNTED))
    if not few:
        return ()
    spikes = tuple(seen.step[few].tolist())
    does = done_more(run, who, spikes)
    if not seen.are_few and _take_turns(run, who, does):
        return ()
    return spikes if isinstance(counted_more(run, who, does), OwnOperators) else ()


def _stalls(beyond: Float64, spikes: tuple[int, ...]) -> tuple[int, ...]:
    """The steps in which they did it, where that was not in the spikes themselves."""
    most = np.sort(np.argsort(-beyond, kind="stable")[: len(spikes)])
    if beyond[list(spikes)].sum() >= _HALF * beyond[most].sum():
        return spikes
    return tuple(most.tolist())


def _by_chance(seen: Seen, ranks: int) -> float:
    """How likely nothing is saved.

    What is cut saves less, never more: either way of counting it is safe. Where others are later
    in some steps nothing is saved there, though the ranks do as much more as in the rest.
    """
    tested = [seen.whole, seen.saved, *([seen.more] if seen.more.size >= MANY_STEPS else [])]
    return min(1.0, *(above_zero(some.astype(np.float64)) * ranks for some in tested))


def _in_vain(run: Measures, does: DoneMore, its: ByStep, spikes: tuple[int, ...]) -> bool:
    """Whether they do as much in other steps, which saves nothing there: that stalls in none.

    But for hosts of GPUs, which run ahead of these, and make up for it so in some steps: where only
    some, several, have them wait for their GPU.
    """
    on_gpus = not run_graph(run).calls.on_cpu.any()
    if len(spikes) > 1 and does.cause in HOST_CAUSES and on_gpus:
        return False
    saved, beyond = its.saved, its.beyond
    each = float(saved[list(spikes)].mean())
    most, others = np.split(np.argsort(-beyond, kind="stable"), [len(spikes)])
    unsaved = beyond[others[saved[others] < _HALF * each]]
    usual = median(unsaved) if unsaved.size else 0.0
    return bool(beyond[most].mean() - usual < _HALF * each)


def _take_turns(run: Measures, who: Suspects, does: DoneMore) -> bool:
    """Whether others have more to compute in other steps; their files are read for that."""
    return does.cause == "compute" and others_in_turn(run, who.ranks)


def _in_turn(
    run: Measures, who: Suspects, lag_ns: Lags, each: ByStep, spikes: tuple[int, ...]
) -> bool:
    """Whether others stall as well, half as long at least, each in steps of its own.

    As many ranks as can, or several others that are the last in as many steps as these stall in.
    Where it is no computing of these that stalls, what others compute longer is no stall.
    """
    if who.made == "sure":
        surely = np.nan_to_num(more_surely_ns(run))
        ranks, late = run_graph(run).by_cell(surely)
    else:
        ranks, late = excess_by_step(run, lag_ns)
    stalls = late >= _HALF * np.sort(each.beyond)[-len(spikes) :].mean()
    in_turn = min(int(stalls.any(axis=side).sum()) for side in (0, 1))
    last = ranks[late.argmax(axis=0)][stalls.any(axis=0)]
    others = last[~np.isin(last, who.ranks)]
    several = distinct(others).size > 1 and others.size >= len(spikes)
    return in_turn > 1 and (several or in_turn == min(stalls.shape))
