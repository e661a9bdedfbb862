"""How surely suspects delay a run, by how much, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.causal.blame.as_recorded import mostly_recorded
from commtrace.causal.blame.awaited import awaited, serves_all, works_by_turns
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.done_more import counted_more, done_more, slower
from commtrace.causal.blame.doubts import doubt
from commtrace.causal.blame.more_calls import only_calls_more
from commtrace.causal.blame.pattern import pattern
from commtrace.causal.blame.search import Suspects
from commtrace.causal.blame.suspects import edit_of
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import as_measured, of_ranks, saved, saved_by, step_ns
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.on_core import lags_on_cores
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.causal.work.segments import own_work, work_on_cores
from commtrace.measures import measure
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["weighed"]

_ON_CORES = ("compute", "garbage-collection")  # what takes a core all the time
_RECORDED = "recording slows hosts, and unrecorded it delays much less"
_TURNS = "it waits for the others, too, as who has its own part in turn"
_ITS_OWN = (
    "the others exchange messages with it alone, so that its part may be its own, as a learner's"
)


def weighed(run: Measures, who: Suspects, ranks: int, lag_ns: Lags) -> Culprit | None:
    """The culprit that they are on top of the edits that made these lags; None if it may be chance.

    Of so many ``ranks`` they were found.
    """
    does = done_more(run, who)
    if does.cause == "host" and only_calls_more(run, who.ranks):
        return None
    its = pattern(run, who, ranks, lag_ns, does)
    if not (its.persistent or its.spikes):
        return None
    longer = _longer_for_cores(run, who.ranks) if does.cause in _ON_CORES else 1.0
    saved_ns = np.rint(who.steps_ns * longer).astype(np.int64)
    on_top_ns, alone_ns = int(saved_ns.sum()), _alone_ns(run, who, lag_ns)
    if not its.persistent:
        does = done_more(run, who, its.stalls)
    more = counted_more(run, who, does)
    times = slower(run, who, does) if more is None else None
    why = doubt(run, who, its, does, more, times, on_top_ns)
    # Whose operators are counted is late, by however little when nobody records these.
    counted = isinstance(more, OwnOperators)
    if why is None and not counted and mostly_recorded(run, who, alone_ns):
        why = _RECORDED
    in_turn = its.persistent and works_by_turns(run, who.ranks)
    if why is None and in_turn:
        why = _TURNS
    if why is None and does.cause == "compute" and serves_all(run, who.ranks):
        why = _ITS_OWN
    before_ns = step_ns(run, [lag_ns])[:, 0] + _waiting_ns(run)
    return Culprit(
        ranks=who.ranks,
        saved_ns=round(alone_ns * longer),
        on_top_ns=on_top_ns,
        replayed_step_ns=int(median(before_ns - saved_ns)),
        steps_ns=np.rint(its.saved_ns * longer).astype(np.int64),
        noise_ns=its.noise_ns,
        p_value=its.p_value,
        persistent=its.persistent,
        in_every=its.in_every,
        spikes=its.spikes,
        others_ns=round(who.others_ns * longer),
        cause=does.cause,
        parts_ns=does.parts_ns,
        call=does.call,
        waits=awaited(run, who.ranks, lag_ns),
        in_median=who.made == "median",
        more=more,
        slower=times,
        doubt=why,
        in_turn=in_turn,
    )


def _alone_ns(run: Measures, who: Suspects, lag_ns: Lags) -> float:
    """What they save without the edits that made these lags."""
    before = undisturbed(run)
    if lag_ns is before:
        return float(who.steps_ns.sum())
    edited = edit_of(run, who, before, work_on_cores(run, before))
    return float(saved_by(run, before, [edited]).sum())


def _longer_for_cores(run: Measures, ranks: tuple[int, ...]) -> float:
    """How many times as long these ranks' work took since they waited for cores.

    They wait while they have work to do: what they do less they do not wait for.
    """
    its = own_work(run)
    if its.waited_ns is None:
        return 1.0
    mine = of_ranks(run, ranks)
    return 1 + float(its.waited_ns[mine].sum() / max(its.own_ns[mine].sum(), 1))


@measure
def _waiting_ns(run: Measures) -> Int64:
    """What each step is longer since threads waited for cores, as far as it is known."""
    measured, without = as_measured(run), lags_on_cores(run)
    if without is measured:
        return np.zeros(len(run_graph(run).ends), dtype=np.int64)
    return saved(run, measured, [without])[:, 0]
