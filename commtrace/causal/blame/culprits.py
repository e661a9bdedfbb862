"""Who delays a run: the ranks whose own work, made typical, makes its steps shorter."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int64, codes, distinct
from commtrace.causal.blame.culprit import Culprit, as_awaited
from commtrace.causal.blame.doubts import as_cores_are_shared
from commtrace.causal.blame.graded import together_if_graded
from commtrace.causal.blame.search import Suspects, least_noise_ns
from commtrace.causal.blame.shared import shared_by_stages
from commtrace.causal.blame.step_patterns import in_few
from commtrace.causal.blame.suspects import (
    edit_of,
    late_together,
    saved_evenly,
    suspects,
    suspects_in_median,
)
from commtrace.causal.blame.weighed import weighed
from commtrace.causal.edits.bounds import critical_path
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import as_measured, of_ranks, saved_by, scaled
from commtrace.causal.replay.graph import Change, Lags, changed, changes
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.replayable import need_replay
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.cores import fight
from commtrace.causal.work.segments import OwnWork, work_on_cores, work_with
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.quantiles import quantiles

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "Culprits",
    "culprits",
    "evened",
    "stalls_in_turn",
    "unpaused",
]

_MOST = 4  # culprits, one on top of the other
_ONCE = 2.0  # times what is worth to be told


class _Edited(Struct, frozen=True, eq=False):
    """Lags, and what is changed of them."""

    before_ns: Lags
    change: Change

    @classmethod
    def of(cls, before_ns: Lags, lag_ns: Lags) -> _Edited:
        return cls(before_ns, changes(before_ns, lag_ns))

    @property
    def lag_ns(self) -> Lags:
        """A new array each time; those before where none is another."""
        return changed(self.before_ns, self.change) if self.change[0].size else self.before_ns


class Culprits(Struct, frozen=True, eq=False):
    """Who delays a run, in order, each on top of those before.

    ``excused`` took longer for the same work as the others on the cores of their host, as it can
    where cores are shared. ``without`` are the lags as measured, and ``undisturbed`` those of a
    run that waits for no cores and is not recorded, both without what the culprits do more than is
    typical.
    """

    found: tuple[Culprit, ...]
    excused: tuple[Culprit, ...]
    without: _Edited
    undisturbed: _Edited

    @property
    def lag_ns(self) -> Lags:
        """The lags without them; as measured where there are none."""
        return self.without.lag_ns


@measure
def culprits(run: Measures, min_share: float) -> Culprits:
    """Who saves at least that share of the steps' time if typical, in every step or in spikes.

    CannotLook for one rank, and where replays say nothing.
    """
    several_ranks(run)
    need_replay(run)
    its = run_graph(run)
    ranks = distinct(its.calls.rank).tolist()
    if len(ranks) < 2:
        raise CannotLook("needs several ranks that communicate")
    found: list[Culprit] = []
    excused: list[Culprit] = []
    lag, mended = undisturbed(run), as_measured(run)
    worth = min_share * float(its.step_ns.sum())
    least = min_share * float(critical_path(run, lag).step_ns.sum())
    left = ranks
    while left and len(found) + len(excused) < _MOST:
        # The last is compared with what the others' work is at its places, as that mostly is.
        last = len(left) == 1
        if last and not all(culprit.in_median for culprit in (*found, *excused)):
            break
        searches = (suspects_in_median,) if last else (suspects, suspects_in_median)
        each = (tried(run, left, lag, least) for tried in searches)
        first = _first(run, chain.from_iterable(each), len(ranks), lag, worth)
        if first is None:
            break
        who, culprit = first
        if _is_excused(run, culprit, worth):
            excused.append(culprit)
        else:
            found += as_awaited(run, culprit, who.edit, lag, worth)
        left = [rank for rank in left if rank not in who.ranks]
        edited = changed(lag, who.edit)
        if mended is lag:
            mended = edited
        else:
            mended = changed(mended, edit_of(run, who, mended, work_with(run, mended)))
        lag = edited
    most = _Edited.of(undisturbed(run), lag)
    without = most if mended is lag else _Edited.of(as_measured(run), mended)
    return Culprits(tuple(together_if_graded(run, found)), tuple(excused), without, most)


def _first(
    run: Measures, each: Iterable[Suspects], ranks: int, lag_ns: Lags, worth_ns: float
) -> tuple[Suspects, Culprit] | None:
    """The first of the suspects that surely delay the run, by so much.

    If none does, the first that pauses in every step though not every one waits.
    """
    paused = None
    for who in each:
        it = weighed(run, who, ranks, lag_ns)
        if it is not None and it.on_top_ns >= worth_ns and late_together(run, who, lag_ns):
            if who.made != "sure" or it.in_every or it.spikes:
                return shared_by_stages(run, who, it, lag_ns)
            paused = paused or (who, it)
    return paused and shared_by_stages(run, *paused, lag_ns)


def _is_excused(run: Measures, it: Culprit, worth_ns: float) -> bool:
    """Whether it does the same as ranks beside it, and takes as long as on shared cores it can.

    Or longer, but in one step alone, for little more than what is worth to be told: so it does on
    any machine now and then.
    """
    on = hosts(run)
    beside = {host for rank, host in on.items() if rank not in it.ranks}
    if it.slower is None or not all(on.get(rank) in beside for rank in it.ranks):
        return False
    stalls = () if it.persistent else it.spikes
    if len(stalls) == 1 and it.on_top_ns < _ONCE * worth_ns:
        return True
    may = as_cores_are_shared(run, it.ranks, stalls) is not None
    return may and it.slower <= fight(run, it.ranks)


@measure
def evened(run: Measures, min_share: float) -> Int64:
    """What each step is shorter if all ranks do each segment in their mean time, culprits aside."""
    lag, but = _aside(run, min_share)
    return saved_evenly(run, lag, work_on_cores(run, lag), but)


@measure
def unpaused(run: Measures, min_share: float) -> Int64:
    """What each step is shorter if all do each segment as is typical of others, culprits aside.

    Pauses in turn vanish so: in their mean time all would pause a little. Where most pause in the
    same step hosts take no longer than they do in the median step.
    """
    lag, but = _aside(run, min_share)
    ranks = [rank for rank in distinct(run_graph(run).calls.rank).tolist() if rank not in but]
    work, mine = work_on_cores(run, lag), of_ranks(run, ranks)
    wanted = work.typical_ns.copy()
    wanted[:, HOSTS] = np.minimum(wanted[:, HOSTS], _in_median_step(run, work))
    return saved_by(run, lag, [scaled(run, work, wanted[mine], mine, lag)])[:, 0]


def _in_median_step(run: Measures, work: OwnWork) -> Float64:
    """What each rank's host does at each place in the median of its steps; of each call."""
    calls = run_graph(run).calls
    at = codes(calls.rank, calls.place)
    own_ns = work.own_ns[:, HOSTS].astype(np.int64)
    return quantiles(at, own_ns, 50, int(at.max(initial=-1)) + 1)[at]


def _aside(run: Measures, min_share: float) -> tuple[Lags, list[int]]:
    """The lags without culprits, and the ranks that they are."""
    known = culprits(run, min_share)
    each = (*known.found, *known.excused)
    but = [rank for its in each if not its.in_median for rank in its.ranks]
    return known.undisturbed.lag_ns, but


@measure
def stalls_in_turn(run: Measures, min_share: float) -> tuple[int, ...]:
    """The steps, several but few, that hold most of what is saved if all do as the mean does.

    No rank is to blame alone for what one stalls in one of them, and another in another.
    """
    steps = evened(run, min_share)
    after = critical_path(run, undisturbed(run)).step_ns - steps
    stalls = in_few(steps, steps.astype(np.float64), least_noise_ns(run), after)
    return stalls if len(stalls) > 1 else ()
