"""In which steps suspects delay a run beyond chance: in every one, in few, or mostly."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Float64, Int32, Int64, distinct
from commtrace.causal.blame.done_more import DoneMore, counted_more, done_more
from commtrace.causal.blame.search import Suspects, by_rank_and_step, least_noise_ns
from commtrace.causal.blame.step_patterns import (
    CHANCE,
    CHANCE_IF_COUNTED,
    MANY_STEPS,
    SPIKE,
    SPIKE_IF_COUNTED,
    in_every,
    in_few,
    in_most,
    scatter,
    since,
    steady,
)
from commtrace.causal.blame.sure import more_surely_ns
from commtrace.causal.blame.suspects import own_and_more
from commtrace.causal.chance import above_zero
from commtrace.causal.edits.run_edits import step_ns
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.recorded_steps import steps_in_common
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.cores import fight, works_more
from commtrace.causal.work.inputs import others_in_turn
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.causal.work.segments import own_work, work_on_cores
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Pattern", "pattern"]

_MOSTLY = 0.5  # of the steps
_HALF = 0.5  # of a stall, as another stalls by turns
_SEVERAL = 8  # steps of other ranks


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


class _Seen(NamedTuple):
    """By step, of those in which ranks can be compared: what is saved, and what suspects did.

    Steps are ``saved`` so much; they take what is ``left``, of few at most what is no noise.
    Suspects did so much ``beyond`` the typical. Where they have calls they did so much of their
    ``own``, and ``more`` than is typical. What the recording cuts is not in ``whole``, of what is
    saved, nor in what suspects did. ``step`` are the steps' places among all.
    """

    step: Int64
    saved: Int64
    left: Int64
    whole: Int64
    beyond: Float64
    own: Float64
    more: Float64


def pattern(run: Measures, who: Suspects, ranks: int, lag_ns: Lags, does: DoneMore) -> Pattern:
    """That of suspects among so many ranks, on top of the edits that made these lags."""
    own, beyond = _by_step(run, who, lag_ns)
    saved = _where_done(who.steps_ns, beyond)
    seen, least = _seen(run, who, lag_ns, saved, own, beyond), least_noise_ns(run)
    noise = max(scatter(seen.more), least)
    p_value = _by_chance(seen, ranks)
    few = (
        since(seen.saved, least)
        or in_most(seen.saved, least, ranks)
        or in_few(seen.saved, seen.beyond, least, seen.left)
    )
    spikes = tuple(seen.step[list(few)].tolist())
    # Few steps say little of how they scatter; what no fight for cores explains is no noise.
    # Nor is what others do not run at all, or on less.
    few_steps = seen.own.size < MANY_STEPS
    maybe = p_value < CHANCE_IF_COUNTED and not spikes and not _take_turns(run, who, does)
    counted = counted_more(run, who, does) if few_steps or maybe else None
    by_turns = isinstance(counted, OwnOperators) and not counted.steady
    usual = seen.own - seen.more
    far = few_steps and (
        counted is not None or bool((seen.own > fight(run, who.ranks) * usual).all())
    )
    unlikely = p_value < CHANCE or (maybe and counted is not None and not by_turns)
    always = in_every(seen.whole, seen.more, least if far else noise, least, unlikely=unlikely)
    if not spikes and not always and (few_steps or who.made == "sure"):
        spikes = _of_its_own(run, who, seen)
    stalls_ns = np.sort(beyond)[beyond.size - len(spikes) :]
    if (
        spikes
        and not always
        and (_alike(beyond, saved, list(spikes)) or _in_turn(run, who, lag_ns, stalls_ns))
    ):
        spikes = ()
    mostly = who.made != "sure" and (seen.more > 0).sum() >= max(_MOSTLY * seen.more.size, 1)
    works = not always and not spikes and mostly and works_more(run, who.ranks)
    works = works and not _take_turns(run, who, does)
    idle = who.made == "sure" and does.cause not in (None, "compute")
    known = own_work(run).waited_ns is not None  # waits for cores, which are no pauses
    pauses = not always and not spikes and idle and known and steady(seen.more, least)
    stalls = _stalls(beyond, spikes)
    return Pattern(always, spikes, stalls, works, pauses, p_value, noise, few_steps, saved)


def _of_its_own(run: Measures, who: Suspects, seen: _Seen) -> tuple[int, ...]:
    """The steps that hold most of it, if they run there what others do not: that is no noise."""
    least = least_noise_ns(run)
    few = list(in_few(seen.saved, seen.beyond, least, seen.left, SPIKE_IF_COUNTED))
    if not few:
        return ()
    spikes = tuple(seen.step[few].tolist())
    does = done_more(run, who, spikes)
    if seen.own.size >= MANY_STEPS and _take_turns(run, who, does):
        return ()
    return spikes if isinstance(counted_more(run, who, does), OwnOperators) else ()


def _where_done(saved: Int64, beyond: Float64) -> Int64:
    """What is saved by step, with what they do between two steps in that whose calls wait for it.

    Such work lies across the end of a step, which it makes longer as well. What is behind the last
    call is counted before the first one, and saved at the end.
    """
    done: Int64 = saved.copy()
    behind_all = min(beyond[0] - saved[0], saved[-1] - beyond[-1])
    if behind_all > 0:
        done[[0, -1]] += np.rint([behind_all, -behind_all]).astype(np.int64)
    for step in range(saved.size - 1):
        here, behind = beyond[step : step + 2]
        if here < _HALF * done[step] and behind > done[step + 1] + _HALF * done[step]:
            done[step : step + 2] = 0, done[step] + done[step + 1]
    return done


def _stalls(beyond: Float64, spikes: tuple[int, ...]) -> tuple[int, ...]:
    """The steps in which they did it, where that was not in the spikes themselves."""
    most = np.sort(np.argsort(-beyond, kind="stable")[: len(spikes)])
    if beyond[list(spikes)].sum() >= _HALF * beyond[most].sum():
        return spikes
    return tuple(most.tolist())


def _by_step(run: Measures, who: Suspects, lag_ns: Lags) -> tuple[Float64, Float64]:
    """What the ranks did in each step, and how much of it beyond the typical, with these lags.

    Of what was made typical, each one's mean.
    """
    its, (mine, *each) = run_graph(run), own_and_more(run, who, lag_ns)
    steps, count = its.step_of[mine], len(its.steps)
    own, beyond = (np.bincount(steps, some, count) / len(who.ranks) for some in each)
    return own, beyond


def _seen(
    run: Measures, who: Suspects, lag_ns: Lags, saved: Int64, own: Float64, beyond: Float64
) -> _Seen:
    """Of what they did in every step."""
    is_cut = run_graph(run).is_cut
    both = steps_in_common(run, who.ranks)
    whole, did = both.copy(), both.copy()
    whole[-1:] &= not is_cut
    # What was before the first call of a run that is cut is not whole.
    did[: own.size > 1] &= not is_cut
    # Between calls work may be of steps that have none, which say nothing of what is in every one.
    calls = did & (own > 0)
    left = step_ns(run, [lag_ns])[:, 0] - who.steps_ns
    if own.size < MANY_STEPS:
        left = np.minimum(left, _unlike_any_other(run, who, lag_ns))
    return _Seen(
        step=np.flatnonzero(both),
        saved=saved[both],
        left=left[both],
        whole=saved[whole],
        beyond=beyond[did],
        own=own[calls],
        more=beyond[calls],
    )


def _unlike_any_other(run: Measures, who: Suspects, lag_ns: Lags) -> int:
    """How much more of work on GPUs, which share no cores, is far above what any other ever does.

    More than any step takes, where others are too few to tell.
    """
    longest = int(np.iinfo(np.int64).max)
    if run_graph(run).calls.on_cpu.any():
        return longest
    ranks, late = _excess(run, lag_ns)
    others = late[~np.isin(ranks, who.ranks)]
    return longest if others.size < _SEVERAL else int(SPIKE * others.max())


def _excess(run: Measures, lag_ns: Lags) -> tuple[Int32, Float64]:
    """The ranks, and what each does beyond the typical, with these lags: ranks × steps."""
    return by_rank_and_step(run_graph(run).calls, work_on_cores(run, lag_ns).excess_ns)


def _by_chance(seen: _Seen, ranks: int) -> float:
    """How likely nothing is saved.

    What is cut saves less, never more: either way of counting it is safe. Where others are later
    in some steps nothing is saved there, though the ranks do as much more as in the rest.
    """
    tested = [seen.whole, seen.saved, *([seen.more] if seen.more.size >= MANY_STEPS else [])]
    return min(1.0, *(above_zero(some.astype(np.float64)) * ranks for some in tested))


def _alike(beyond: Float64, saved: Int64, spikes: list[int]) -> bool:
    """Whether they do as much in other steps, which saves nothing there: that stalls in none."""
    each = float(saved[spikes].mean())
    most, others = np.split(np.argsort(-beyond, kind="stable"), [len(spikes)])
    unsaved = beyond[others[saved[others] < _HALF * each]]
    usual = median(unsaved) if unsaved.size else 0.0
    return bool(beyond[most].mean() - usual < _HALF * each)


def _take_turns(run: Measures, who: Suspects, does: DoneMore) -> bool:
    """Whether others have more to compute in other steps; their files are read for that."""
    return does.cause == "compute" and others_in_turn(run, who.ranks)


def _in_turn(run: Measures, who: Suspects, lag_ns: Lags, stalls_ns: Float64) -> bool:
    """Whether others stall as well, half as long at least, each in steps of its own.

    As many ranks as can, or several others that are the last in as many steps as these stall in.
    Where it is no computing of these that stalls, what others compute longer is no stall.
    """
    if who.made == "sure":
        surely = np.nan_to_num(more_surely_ns(run))
        ranks, late = by_rank_and_step(run_graph(run).calls, surely)
    else:
        ranks, late = _excess(run, lag_ns)
    stalls = late >= _HALF * stalls_ns.mean()
    in_turn = min(int(stalls.any(axis=side).sum()) for side in (0, 1))
    last = ranks[late.argmax(axis=0)][stalls.any(axis=0)]
    others = last[~np.isin(last, who.ranks)]
    several = distinct(others).size > 1 and others.size >= stalls_ns.size
    return in_turn > 1 and (several or in_turn == min(stalls.shape))
