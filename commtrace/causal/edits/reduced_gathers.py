"""What if a sum were all_reduced, not made by each rank of what it gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int64, in_order
from commtrace.causal.edits.object_edits import doing_less
from commtrace.causal.edits.run_edits import transferring_less
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["all_reduced"]


def all_reduced(
    run: Measures, number: Int64, less_ns: Float64, summing_ns: Float64, lag_ns: Lags
) -> Lags:
    """Operations of these numbers take so much less, and behind each no host sums so long."""
    calls = run_graph(run).calls
    count = 1 + max(int(its.max(initial=0)) for its in (calls.operation, number))
    less, summing = np.zeros(count), np.zeros(count)
    less[number], summing[number] = np.rint(less_ns.clip(min=0)), summing_ns
    order = in_order(calls.rank.astype(np.int64), calls.launch_ns)
    here, behind = order[:-1], order[1:]
    same = calls.rank[here] == calls.rank[behind]
    before = np.zeros(calls.rank.size)
    before[behind[same]] = summing[calls.operation[here[same]]]
    moving = transferring_less(run, less[calls.operation].astype(np.int64), lag_ns)
    return doing_less(run, before, moving)
