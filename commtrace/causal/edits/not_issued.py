"""What if calls were not made: FSDP's hosts then need no time for them, either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, distinct
from commtrace.causal.edits.rank_edits import doing_nothing_within
from commtrace.causal.edits.run_edits import needing_nobody
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.intervals import union

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["not_issued"]

_ISSUES = ("FSDP::all_gather ", "FSDP::post_backward_reduce ")
_USES = "FSDP::all_gather_copy_out "


def not_issued(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These calls (a flag for each) are not made.

    Nor does a GPU's host do what FSDP2 marks around them, where it makes no other call: it gathers
    what a rank keeps into one buffer, calls, and copies what came out of another; the last in the
    order of the gathers. Its other threads do nothing meanwhile, either.
    """
    its = run_graph(run)
    lag: Int64 = needing_nobody(run, which, lag_ns).astype(np.int64)
    steps = run.rows("steps")
    begin, label = steps.ints("start_ns"), steps.coded("label")
    end = begin + steps.ints("duration_ns")
    gone = which & ~its.calls.on_cpu
    called = run.rows("collectives", its.calls.row).ints("launch_ns")
    for rank in distinct(its.calls.rank[gone]).tolist():
        here = steps.ints("rank") == rank
        mine = its.calls.rank == rank
        launched, kept = (np.sort(called[mine & some]) for some in (gone, ~which))
        found = []
        for name in _ISSUES:
            issues, uses = (
                _in_order(here & label.where(lambda one, of=of: one.startswith(of)), begin)  # type: ignore[misc]
                for of in (name, _USES)
            )
            holds = _hold(launched, begin[issues], end[issues])
            holds &= ~_hold(kept, begin[issues], end[issues])
            found.append(issues[holds])
            if name == _ISSUES[0] and issues.size == uses.size:
                found.append(uses[holds])
        rows = np.concatenate(found)
        if rows.size:
            doing_nothing_within(run, rank, union(begin[rows], end[rows]), lag)
    return lag


def _hold(moments: Int64, begin: Int64, end: Int64) -> Bool:
    """Which ranges hold any of some sorted moments."""
    found: Bool = np.searchsorted(moments, begin) < np.searchsorted(moments, end)
    return found


def _in_order(rows: Bool, begin: Int64) -> Int64:
    found = np.flatnonzero(rows)
    return found[np.argsort(begin[found], kind="stable")]
