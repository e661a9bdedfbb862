"""How surely suspects delay a run, by how much, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.causal.blame.as_recorded import mostly_recorded
from commtrace.causal.blame.awaited import awaited, works_by_turns
from commtrace.causal.blame.causes import bursts, doubt_of
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.done_more import DoneMore, counted_more, done_more, slower
from commtrace.causal.blame.more_calls import only_calls_more
from commtrace.causal.blame.pattern import Pattern, pattern
from commtrace.causal.blame.search import Suspects
from commtrace.causal.blame.suspects import edit_of
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import as_measured, of_ranks, saved, saved_by, step_ns
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.core_speed import slower_core
from commtrace.causal.work.inputs import Inputs
from commtrace.causal.work.looks import only_there_ns
from commtrace.causal.work.on_core import lags_on_cores
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.causal.work.segments import own_work, work_on_cores
from commtrace.diagnosis import Cause
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import on_hosts_of_their_own
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["weighed"]

_MOST = 0.5  # of what is saved
_ON_CORES = ("compute", "garbage-collection")  # what takes a core all the time
_LENT = 1.7  # of half a core: what its other half runs takes the rest
_BESIDE = 1.4  # of a whole one: processes beside it share its caches
_NOT_ALWAYS = "its process takes more processor time than the others', but not every step waits"
_RECORDED = "recording slows hosts, and unrecorded it delays much less"
_ONCE = "it happened once, and nothing says what it was"
_TURNS = "it waits for the others, too, as who has its own part in turn"
_PAUSES = "it pauses for about as long in every step, but not every step waits"


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
    doubt = _doubt(run, who, its, does, more, times, on_top_ns)
    if doubt is None and mostly_recorded(run, who, alone_ns):
        doubt = _RECORDED
    in_turn = its.persistent and works_by_turns(run, who.ranks)
    if doubt is None and in_turn:
        doubt = _TURNS
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
        doubt=doubt,
        in_turn=in_turn,
    )


def _doubt(
    run: Measures,
    who: Suspects,
    its: Pattern,
    does: DoneMore,
    more: OwnOperators | Inputs | None,
    times: float | None,
    on_top_ns: int,
) -> str | None:
    """Why it may not be they, by what they do and in which steps.

    They do ``more``, or take so many ``times`` as long for the same.
    """
    if its.works:
        return _NOT_ALWAYS
    if its.pauses:
        return _PAUSES
    sure = more is not None or (who.made == "sure" and does.cause == "compute")
    sure = sure or _in_python(run, who.ranks, does.cause, on_top_ns)
    doubt = doubt_of(run, who.ranks, on_top_ns, does.cause, does.stalls, sure=sure)
    if doubt is not None or not run_graph(run).calls.on_cpu.any():
        return doubt
    often = None if its.persistent else bursts(its.spikes)
    once = _ONCE if often == 1 and does.cause is None else None
    return _doubt_of_slower(run, who, times, few_steps=its.few_steps, often=often) or once


def _in_python(run: Measures, ranks: tuple[int, ...], cause: Cause | None, on_top_ns: int) -> bool:
    """Whether most of it is surely Python of the program's that others hardly run."""
    return cause == "host" and only_there_ns(run, ranks) >= _MOST * on_top_ns


def _alone_ns(run: Measures, who: Suspects, lag_ns: Lags) -> float:
    """What they save without the edits that made these lags."""
    before = undisturbed(run)
    if lag_ns is before:
        return float(who.steps_ns.sum())
    edited = edit_of(run, who, before, work_on_cores(run, before))
    return float(saved_by(run, before, [edited]).sum())


def _doubt_of_slower(
    run: Measures, who: Suspects, times: float | None, *, few_steps: bool, often: int | None
) -> str | None:
    """Why it may not be they that take so many ``times`` as long for the same, on CPUs.

    Few steps say little of that, nor what happened once, or a little more ``often`` but not in
    every step: something else runs beside it then, or memory is taken anew, as where recording
    breaks it up. Who has half of a core that another process shares takes up to ``_LENT`` times as
    long without waiting for it, or as much longer as a fixed piece of work, and a little for what
    they share.
    """
    if times is None:
        return None
    longer = f"the same work takes {times:.2f} times as long there"
    if few_steps:
        return f"{longer}, as it can in few steps"
    by_chance = often == 1 or (often is not None and times < _LENT)
    if by_chance and not on_hosts_of_their_own(run, who.ranks):
        when = "once" if often == 1 else "now and then"
        return f"{longer} {when}, as while something else runs beside it, or memory is taken anew"
    core = slower_core(run, who.ranks)
    most = _LENT if core is None else _BESIDE * max(core, 1.0)
    if times < most and not on_hosts_of_their_own(run, who.ranks):
        return f"{longer}, as it can on a core that another process shares"
    return None


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
