"""What culprits do that delays a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int32, Int64, codes
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import saved_by, typical
from commtrace.causal.run.builder import DEVICES, FEED, HOSTS
from commtrace.causal.run.calls import op_and_dimension
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import LABELLED, own_parts, own_work, work_on_cores
from commtrace.causal.work.usual import of_the_rest
from commtrace.diagnosis import Cause

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["cause_of", "excess_by_cause", "most_before"]

_ENOUGH = 1 / 3  # of what is done more


def excess_by_cause(
    run: Measures, ranks: tuple[int, ...], which: Bool | None = None
) -> dict[Cause, float]:
    """What the ranks did more than is typical, by cause.

    By place where others have such a place, else by step: others than these, if they are several.
    ``which`` are the calls before which it counts (a flag for each), by default all of theirs.
    """
    calls, place = run_graph(run).calls, own_work(run).place
    mine = np.isin(calls.rank, ranks)
    counts = mine if which is None else mine & which
    parts: dict[Cause, float] = {}
    for cause, time in own_parts(run).items():
        usual = of_the_rest(time, place, mine)
        if np.isnan(usual[mine]).any():
            sums = np.bincount(calls.in_step, weights=time).astype(np.int64)
            usual = of_the_rest(sums, calls.first_step, mine[calls.first])
            more = (sums - usual)[counts[calls.first]]
        else:
            more = (time - usual)[counts]
        parts[cause] = float(np.nansum(more))
    return parts


def most_before(
    run: Measures, ranks: tuple[int, ...], more_ns: Float64, which: Bool | None = None
) -> int:
    """The ranks' call before which they did most of ``more_ns``, given for each call; -1 for none.

    That is of the op and dimension with most before all of its calls in sum. ``which`` are the
    calls that count (a flag for each), by default all of theirs.
    """
    calls = run_graph(run).calls
    counts = np.isin(calls.rank, ranks)
    at = np.flatnonzero(counts if which is None else counts & which)
    for numbers in (op_and_dimension(run)[calls.row], calls.place):
        at = at[_of_most(numbers[at], more_ns[at])]
    return int(at[more_ns[at].argmax()]) if at.size else -1


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
    labelled = [label for label in LABELLED if possible.get(label, 0) > _ENOUGH * total]
    if cause == "host" and labelled:
        return labelled[0]
    return cause if possible[cause] > total / 2 else None


def _feed_copies(run: Measures, ranks: tuple[int, ...]) -> bool:
    """Whether hosts of these ranks feed copies from pageable memory."""
    its = run_graph(run)
    feeds = its.graph.kind[its.own] == FEED
    return bool(np.isin(its.calls.rank[its.own_call[feeds]], ranks).any())
