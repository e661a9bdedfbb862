"""What if calls were not made: the hosts of GPUs then need no time for them, either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, rows_by
from commtrace.causal.edits.rank_edits import (
    doing_nothing_within,
    not_blocking_first,
    not_launching,
)
from commtrace.causal.edits.run_edits import needing_nobody
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.intervals import NEVER, Intervals, union
from commtrace.metrics.rank.rows_of import rows_of_rank

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["not_issued", "not_waited_in"]

_GATHERS, _USES = "FSDP::all_gather ", "FSDP::all_gather_copy_out "
_OTHERS = ("FSDP::post_backward_reduce ", "FSDP::pre_forward (", "FSDP::pre_backward (")
_RESUMES_NS = 100_000  # so soon a host goes on behind a barrier


def not_issued(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These calls (a flag for each) are not made.

    Nor does a GPU's host do what it did within torch's operators that called them, or what leads
    from one to the next, where it launches nothing else. Of FSDP2 not what that marks around them,
    where it makes no other call: before forward and backward passes it gathers what a rank keeps
    into one buffer, calls, and copies what came out of another; the last in the order of the
    gathers. Its other threads do nothing meanwhile, either.
    """
    its = run_graph(run)
    lag: Int64 = needing_nobody(run, which, lag_ns).astype(np.int64)
    called = run.rows("collectives", its.calls.row).ints("launch_ns")
    gathers, uses, *others = (_ranges(run, label) for label in (_GATHERS, _USES, *_OTHERS))
    marked = {*gathers}.union(*others)
    for (rank,), rows in rows_by(its.calls.rank).items():
        gone = which[rows] & ~its.calls.on_cpu[rows]
        if not gone.any():
            continue
        launched, kept = (np.sort(called[rows[some]]) for some in (gone, ~which[rows]))
        if rank not in marked:
            not_launching(run, rank, launched, lag)
            doing_nothing_within(run, rank, _called_by(run, rank, launched, kept), lag)
            continue
        gather, use, *other = (of.get(rank, NEVER) for of in (gathers, uses, *others))
        found = [(ranges, _needless(ranges, launched, kept)) for ranges in (gather, *other)]
        gathered = found[0][1]
        found += [(use, gathered)] if use[0].size == gathered.size else []
        begin, end = (np.concatenate([ranges[at][some] for ranges, some in found]) for at in (0, 1))
        if begin.size:
            doing_nothing_within(run, rank, union(begin, end), lag)
    return lag


def not_waited_in(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These barriers (a flag for each) are not made, nor do the hosts of GPUs wait in them."""
    its = run_graph(run)
    lag: Int64 = not_issued(run, which, lag_ns).astype(np.int64)
    on_gpus = which & ~its.calls.on_cpu
    rows = run.rows("collectives", its.calls.row[on_gpus])
    done_ns = rows.ints("start_ns") + rows.ints("duration_ns")
    for (rank,), mine in rows_by(its.calls.rank[on_gpus]).items():
        not_blocking_first(run, rank, done_ns[mine], _RESUMES_NS, lag)
    return lag


def _ranges(run: Measures, label: str) -> dict[int, Intervals]:
    """Each rank's whose label starts so, in their order."""
    steps = run.rows("steps")
    its = steps.take(steps.coded("label").where(lambda name: name.startswith(label)))
    begin, end = its.when()
    found: dict[int, Intervals] = {}
    for (rank,), rows in rows_by(its.ints("rank")).items():
        order = rows[np.argsort(begin[rows], kind="stable")]
        found[rank] = begin[order], end[order]
    return found


def _called_by(run: Measures, rank: int, launched: Int64, kept: Int64) -> Intervals:
    """When operators of communication ran that called these, and none that is made."""
    ops = rows_of_rank(run, "ops", rank)
    begin, end = ops.take(ops.coded("kind").being("communication")).when()
    needless = _needless((begin, end), launched, kept)
    return union(begin[needless], end[needless])


def _needless(ranges: Intervals, launched: Int64, kept: Int64) -> Bool:
    """Which hold a call that is not made, and none that is."""
    return _hold(launched, *ranges) & ~_hold(kept, *ranges)


def _hold(moments: Int64, begin: Int64, end: Int64) -> Bool:
    """Which ranges hold any of some sorted moments."""
    found: Bool = np.searchsorted(moments, begin) < np.searchsorted(moments, end)
    return found
