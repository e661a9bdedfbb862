"""Why it may not be culprits that delay a run, though it is shorter without their work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import codes, distinct, least, most, sums
from commtrace.causal.blame.done_more import DoneMore
from commtrace.causal.blame.pattern import Pattern
from commtrace.causal.blame.search import Suspects
from commtrace.causal.blame.step_patterns import MANY_STEPS
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.core_speed import slower_core
from commtrace.causal.work.cores import asleep_ns, bound_together, fight, processor, taken_cores
from commtrace.causal.work.inputs import Inputs
from commtrace.causal.work.looks import only_there_ns
from commtrace.causal.work.on_core import on_core
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.causal.work.segments import own_parts, own_work
from commtrace.diagnosis import Cause
from commtrace.metrics.rank.hosts import on_hosts_of_their_own
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, medians
from commtrace.units import ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["as_cores_are_shared", "doubt"]

_EXPLAINED = 0.9  # of the starts on GPUs
_HALF = 0.5  # of a stall
_TELLING = 3  # stalls that are apart
_BESIDE_ANOTHER = 2.0  # times as long: who has half a core, for a while
_LITTLE_OF = 0.25  # of what is saved
_AWAKE = 0.5  # of what they do more: less of it asleep
_SLOW_CORE = 1.1  # times as long for a fixed piece of work: less is chance
_MOST = 0.5  # of what is saved
_LENT = 1.7  # of half a core: what its other half runs takes the rest
_BESIDE = 1.4  # of a whole one: processes beside it share its caches
_NOT_ALWAYS = "its process takes more processor time than the others', but not every step waits"
_ONCE = "it happened once, and nothing says what it was"
_PAUSES = "it pauses for about as long in every step, but not every step waits"


def doubt(
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
    why = _of_ranks(run, who.ranks, on_top_ns, does.cause, does.stalls, sure=sure)
    if why is not None or not run_graph(run).calls.on_cpu.any():
        return why
    often = None if its.persistent else _bursts(its.spikes)
    once = _ONCE if often == 1 and does.cause is None else None
    return _of_slower(run, who, times, few_steps=its.few_steps, often=often) or once


def _in_python(run: Measures, ranks: tuple[int, ...], cause: Cause | None, on_top_ns: int) -> bool:
    """Whether most of it is surely Python of the program's that others hardly run."""
    return cause == "host" and only_there_ns(run, ranks) >= _MOST * on_top_ns


def _of_ranks(
    run: Measures,
    ranks: tuple[int, ...],
    saved_ns: int,
    cause: Cause | None,
    spikes: Sequence[int],
    *,
    sure: bool,
) -> str | None:
    """Why it may not be the ranks that are slow; ``sure``: they run what others do not.

    Clocks that differ, and waits of GPUs that the trace lacks, look like it. So do processes that
    fight for cores, though not in ``spikes`` that are apart, and take no more processor time; and
    what else runs on these, as the recording says.
    """
    its = run_graph(run)
    error = _clock_error_ns(run, ranks)
    if saved_ns < error:
        return f"the clocks' errors in its operations add up to {ms(error)}"
    if its.explained < _EXPLAINED:
        share = f"{100 * its.explained:.0f} %"
        return f"the trace shows for {share} of the GPUs' work what it waited for"
    if sure:
        return None
    bound = set(bound_together(run))
    if bound & {*ranks} and bound - {*ranks}:
        return f"{numbered('rank', bound)} are bound to the same cores, and take these by turns"
    if spikes and cause and (theirs := _others_stall(run, ranks, cause, spikes)):
        return f"in the same steps the others stall so, too, for {ms(round(theirs))}"
    return _of_cores(run, ranks, saved_ns, cause, spikes)


def _of_cores(
    run: Measures,
    ranks: tuple[int, ...],
    saved_ns: int,
    cause: Cause | None,
    spikes: Sequence[int],
) -> str | None:
    """Why it may be the cores that they ran on.

    Who waited for a core is known; not who waited once for a disk or a lock that others held, nor
    who worked longer now and then, in torch or outside, since others used its core's caches. Nor,
    where nothing is known of cores, who did nothing for a while.
    """
    unknown, times_late = on_core(run) is None, _bursts(spikes)
    awake = cause == "host" and (
        (unknown and 0 < times_late < _TELLING) or _awake(run, ranks, saved_ns)
    )
    working = cause in ("compute", None) or awake
    beside = unknown or times_late == 1 or (spikes and working)
    if beside and (taken := taken_cores(run, ranks)):
        return taken
    took = processor(run, ranks) if cause in ("compute", None) and not spikes else None
    if took is not None and took.more_ns < _LITTLE_OF * saved_ns:
        return f"its process took {took.times:.2f} times the others' processor time, no more"
    if not working or (times := as_cores_are_shared(run, ranks, spikes)) is None:
        return None
    longer = f"its work takes {times:.2f} times the typical"
    core = slower_core(run, ranks, spikes)
    if core is not None and core >= _SLOW_CORE:
        return f"{longer}, a fixed piece of it {core:.2f} times: its core is slow, or half of one"
    return f"{longer}, as it can where processes share cores"


def _of_slower(
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


def _others_stall(
    run: Measures, ranks: tuple[int, ...], cause: Cause, spikes: Sequence[int]
) -> float | None:
    """How long others stall for the same cause in these steps, in ns, if it is half as long.

    That is how much longer they take than in their other steps.
    """
    its = run_graph(run)
    every, time = its.by_cell(own_parts(run)[cause])
    rest = np.delete(time, list(spikes), axis=1)
    if not rest.size:
        return None
    stalls = time[:, list(spikes)].mean(axis=1) - medians(rest, axis=1)
    mine = np.isin(every, ranks)
    theirs = median(stalls[~mine]) if not mine.all() else 0.0
    return theirs if theirs >= _HALF * max(float(stalls[mine].mean()), 1.0) else None


def as_cores_are_shared(
    run: Measures, ranks: tuple[int, ...], spikes: Sequence[int]
) -> float | None:
    """How many times as long as is typical these ranks' work takes, if a fight for cores may do so.

    None where it takes longer than that, in spikes that are apart, and on GPUs. Where nothing is
    known of cores two that are apart tell nothing yet.
    """
    its, work, unknown = run_graph(run), own_work(run), on_core(run) is None
    if _bursts(spikes) >= (_TELLING if unknown else 2) or not its.calls.on_cpu.any():
        return None
    mine = np.isin(its.calls.rank, ranks)
    typical = work.typical_ns[:, HOSTS].copy()
    if len(ranks) > 1:
        typical[mine] = work.parts[HOSTS].of_the_rest(mine, mine)
    mine = mine & ~np.isnan(typical)
    if spikes:
        mine &= np.isin(its.step_of, spikes)
    step = codes(its.calls.step[mine])
    own = np.bincount(step, weights=work.own_ns[mine, HOSTS])
    usual = np.bincount(step, weights=typical[mine])
    factor = float(own.sum() / max(usual.sum(), 1.0))
    # By what is typical in the step or in all: in a step it may be next to nothing.
    each = (own / np.maximum(usual, 1.0), own / max(usual.mean(), 1.0)) if own.size > 1 else ()
    scatter = float(min((its.std(ddof=1) for its in each), default=0.0))
    most = fight(run, ranks, few=own.size < MANY_STEPS)
    if spikes and unknown:
        most = max(most, _BESIDE_ANOTHER)
    return None if factor - scatter / max(own.size, 1) ** 0.5 > most else factor


def _bursts(spikes: Sequence[int]) -> int:
    """How many times they stall: what else takes cores may do so for several steps on end."""
    return int((np.diff(spikes) > 1).sum()) + bool(spikes)


def _awake(run: Measures, ranks: tuple[int, ...], more_ns: int) -> bool:
    """Whether these ranks' threads surely ran for most of what they did more, outside of torch."""
    asleep = asleep_ns(run)
    if asleep is None:
        return False
    usual = median([its for rank, its in asleep.items() if rank not in ranks])
    return max(asleep[rank] for rank in ranks) - usual < _AWAKE * more_ns


def _clock_error_ns(run: Measures, ranks: tuple[int, ...]) -> int:
    """What differences between ranks have to exceed in all the operations of one of these, summed.

    Of that which has most of it: what others do at the same time is not behind one another.
    Nothing of an operation whose ranks have one clock.
    """
    calls, clocks = run_graph(run).calls, matched(run).clock
    mine = np.isin(calls.rank, ranks)
    rows = np.flatnonzero(np.isin(calls.operation, distinct(calls.operation[mine])))
    at = clocks.ints("rank").searchsorted(calls.rank[rows])
    clock = clocks.ints("clock")[at]
    error_ns = clocks.ints("error_ns").clip(min=0)[at]  # 0 where it is unknown
    operation = codes(calls.operation[rows])
    count = 1 + operation.max(initial=-1)
    unlike = least(operation, clock, count) != most(operation, clock, count)
    of_operation = np.where(unlike, most(operation, error_ns, count), 0)
    its = mine[rows]
    rank = codes(calls.rank[rows][its])
    of_rank = sums(rank, of_operation[operation[its]], 1 + rank.max(initial=-1))
    return TRUST * int(of_rank.max(initial=0))
