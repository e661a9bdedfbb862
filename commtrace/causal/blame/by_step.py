"""What suspects did by step, and what is saved there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Float64, Int32, Int64
from commtrace.causal.blame.search import Suspects
from commtrace.causal.blame.step_patterns import MANY_STEPS, SPIKE
from commtrace.causal.blame.suspects import own_and_more
from commtrace.causal.edits.run_edits import step_ns
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.recorded_steps import steps_in_common
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import work_on_cores

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ByStep", "Seen", "by_step", "excess_by_step", "seen_in"]

_HALF = 0.5  # of what is saved in a step
_SEVERAL = 8  # steps of other ranks


class ByStep(NamedTuple):
    """Of each step what is ``saved``, and what suspects did: their ``own`` work, in the mean.

    So much of it is ``beyond`` the typical.
    """

    saved: Int64
    own: Float64
    beyond: Float64


class Seen(NamedTuple):
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

    @property
    def are_few(self) -> bool:
        """Whether they are too few to say how they scatter."""
        return self.own.size < MANY_STEPS


def by_step(run: Measures, who: Suspects, lag_ns: Lags) -> ByStep:
    """In every step of a run, with these lags.

    Of what was made typical, each one's mean.
    """
    its, (mine, *each) = run_graph(run), own_and_more(run, who, lag_ns)
    steps, count = its.step_of[mine], len(its.steps)
    own, beyond = (np.bincount(steps, some, count) / len(who.ranks) for some in each)
    return ByStep(_where_done(who.steps_ns, beyond), own, beyond)


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


def seen_in(run: Measures, who: Suspects, lag_ns: Lags, each: ByStep) -> Seen:
    """Those of the steps in which ranks can be compared."""
    saved, own, beyond = each
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
    return Seen(
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
    ranks, late = excess_by_step(run, lag_ns)
    others = late[~np.isin(ranks, who.ranks)]
    return longest if others.size < _SEVERAL else int(SPIKE * others.max())


def excess_by_step(run: Measures, lag_ns: Lags) -> tuple[Int32, Float64]:
    """The ranks, and what each does beyond the typical, with these lags: ranks × steps."""
    return run_graph(run).by_cell(work_on_cores(run, lag_ns).excess_ns)
