"""What culprits do that delays a run, and why it may not be they."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int32, Int64, codes, distinct, least, most, sums
from commtrace.causal.blame.step_patterns import MANY_STEPS
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import saved_by, typical
from commtrace.causal.run.builder import DEVICES, FEED, HOSTS
from commtrace.causal.run.calls import op_and_dimension
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.core_speed import slower_core
from commtrace.causal.work.cores import asleep_ns, bound_together, fight, processor, taken_cores
from commtrace.causal.work.on_core import on_core
from commtrace.causal.work.segments import LABELLED, own_parts, own_work, work_on_cores
from commtrace.causal.work.usual import of_the_rest
from commtrace.diagnosis import Cause
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, medians
from commtrace.units import ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["as_cores_are_shared", "bursts", "cause_of", "doubt_of", "excess"]

_EXPLAINED = 0.9  # of the starts on GPUs
_HALF = 0.5  # of a stall
_TOLD = 1 / 3  # of what is done more
_TELLING = 3  # stalls that are apart
_BESIDE_ANOTHER = 2.0  # times as long: who has half a core, for a while
_LITTLE_OF = 0.25  # of what is saved
_MOST = 0.5  # of what they do more: less of it asleep
_SLOW_CORE = 1.1  # times as long for a fixed piece of work: less is chance


def excess(
    run: Measures,
    ranks: tuple[int, ...],
    which: Bool | None = None,
    more_ns: Float64 | None = None,
) -> tuple[dict[Cause, float], int]:
    """What the ranks did more than is typical, by cause; and the call with most of it before it.

    That is of the op and dimension with most before all of its calls in sum.
    By place where others have such a place, else by step: others than these, if they are several.
    ``which`` are the calls before which it counts (a flag for each), by default all of theirs;
    ``more_ns`` is how much it is before each, by default what its own work is longer.
    """
    its, work = run_graph(run), own_work(run)
    mine = np.isin(its.calls.rank, ranks)
    counts = mine if which is None else mine & which
    in_step, first = its.calls.in_step, its.calls.first
    parts: dict[Cause, float] = {}
    for cause, time in own_parts(run).items():
        usual = of_the_rest(time, work.place, mine)
        if np.isnan(usual[mine]).any():
            sums = np.bincount(in_step, weights=time).astype(np.int64)
            usual = of_the_rest(sums, its.calls.first_step, mine[first])
            more = (sums - usual)[counts[first]]
        else:
            more = (time - usual)[counts]
        parts[cause] = float(np.nansum(more))
    more = np.where(counts, work.excess_ns if more_ns is None else more_ns, 0)
    at = np.flatnonzero(counts)
    for numbers in (op_and_dimension(run)[its.calls.row], its.calls.place):
        at = at[_of_most(numbers[at], more[at])]
    return parts, int(at[more[at].argmax()]) if at.size else -1


def _of_most(numbers: Int64 | Int32, more: Float64) -> Bool:
    """The calls of the number before which, in sum, most of it is."""
    sums = np.bincount(codes(numbers), weights=more)
    most: Bool = codes(numbers) == (sums.argmax() if sums.size else -1)
    return most


def cause_of(run: Measures, ranks: tuple[int, ...], parts: Mapping[Cause, float]) -> Cause | None:
    """What most of the excess is; on GPUs of the host or the device, whichever saves more.

    A copy that the host feeds is of both, and may be faster only with both. Of what runs no
    operator a label tells enough if it holds a third: a checkpoint waits for its disk behind it.
    """
    possible = dict(parts)
    if not run_graph(run).calls.on_cpu.any():
        lag = undisturbed(run)
        work = work_on_cores(run, lag)
        edits = (typical(run, ranks, lag, part, work) for part in (None, HOSTS, DEVICES))
        both, host, device = saved_by(run, lag, edits).sum(axis=0).tolist()
        fed = "copy" if _feed_copies(run, ranks) else None
        together = max(host, device) < both / 2
        if together and not fed:
            return None
        possible = {
            cause: time
            for cause, time in parts.items()
            if both <= 0  # another delays the run more: what takes longest tells
            or together
            or cause == fed
            or (cause in ("compute", "copy")) == (device >= host)
        }
    total = sum(max(value, 0) for value in possible.values())
    cause = max(possible, key=lambda cause: possible[cause])
    told = [label for label in LABELLED if possible.get(label, 0) > _TOLD * total]
    if cause == "host" and told:
        return told[0]
    return cause if possible[cause] > total / 2 else None


def _feed_copies(run: Measures, ranks: tuple[int, ...]) -> bool:
    """Whether hosts of these ranks feed copies from pageable memory."""
    its = run_graph(run)
    feeds = its.graph.kind[its.own] == FEED
    return bool(np.isin(its.calls.rank[its.own_call[feeds]], ranks).any())


def doubt_of(
    run: Measures,
    ranks: tuple[int, ...],
    saved_ns: int,
    cause: Cause | None,
    spikes: Sequence[int],
    *,
    sure: bool = False,
) -> str | None:
    """Why it may not be the ranks that are slow; ``sure``: they run what others do not.

    Processes that fight for cores look like it, though not in ``spikes`` that are apart, and take
    no more processor time; what else runs on these, as the recording says, clocks that differ, and
    waits of GPUs that the trace lacks.
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
    # Who waited for a core is known; not who waited once for a disk or a lock that others held, nor
    # who worked longer now and then, in torch or outside, since others used its core's caches.
    # Nor, where nothing is known of cores, who did nothing for a while.
    untold = on_core(run) is None
    awake = cause == "host" and (
        (untold and 0 < bursts(spikes) < _TELLING) or _awake(run, ranks, saved_ns)
    )
    working = cause in ("compute", None) or awake
    unknown = untold or bursts(spikes) == 1 or (spikes and working)
    if unknown and (taken := taken_cores(run, ranks)):
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
    its, work, untold = run_graph(run), own_work(run), on_core(run) is None
    if bursts(spikes) >= (_TELLING if untold else 2) or not its.calls.on_cpu.any():
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
    if spikes and untold:
        most = max(most, _BESIDE_ANOTHER)
    return None if factor - scatter / max(own.size, 1) ** 0.5 > most else factor


def bursts(spikes: Sequence[int]) -> int:
    """How many times they stall: what else takes cores may do so for several steps on end."""
    return int((np.diff(spikes) > 1).sum()) + bool(spikes)


def _awake(run: Measures, ranks: tuple[int, ...], more_ns: int) -> bool:
    """Whether these ranks' threads surely ran for most of what they did more, outside of torch."""
    asleep = asleep_ns(run)
    if asleep is None:
        return False
    usual = median([its for rank, its in asleep.items() if rank not in ranks])
    return max(asleep[rank] for rank in ranks) - usual < _MOST * more_ns


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
