"""What if a sum were all_reduced, not made by ranks of what they gather or receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.edits.doing_less import doing_less_behind
from commtrace.causal.edits.run_edits import transferring_less
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.metrics.run.sums_by_hand import HandMadeSum

__all__ = ["all_reduced", "all_reduced_instead"]


def all_reduced(
    run: Measures, number: Int64, less_ns: Float64, summing_ns: Float64, lag_ns: Lags
) -> Lags:
    """Operations of these numbers take so much less, and behind each no host sums so long."""
    operation = run_graph(run).calls.operation.astype(np.int64)
    less, summing = (_at(operation, number, its) for its in (less_ns, summing_ns))
    return _without(run, less, summing, lag_ns)


def all_reduced_instead(run: Measures, its: HandMadeSum, lag_ns: Lags) -> Lags:
    """Each of its operations takes what an all_reduce needs of its time, and no host sums."""
    calls, less_ns = run_graph(run).calls, its.transfer_ns(run) * (1 - its.needed)
    less = _at(calls.operation.astype(np.int64), its.operation, less_ns)
    summing = _at(calls.row.astype(np.int64), its.rows, its.summing_ns.astype(np.float64))
    return _without(run, less, summing, lag_ns)


def _at(numbers: Int64, known: Int64, values: Float64) -> Float64:
    """The values of known numbers, at all numbers; 0 elsewhere."""
    each = np.zeros(1 + max(int(its.max(initial=0)) for its in (numbers, known)))
    each[known] = values
    return each[numbers]


def _without(run: Measures, less_ns: Float64, summing_ns: Float64, lag_ns: Lags) -> Lags:
    """Calls take so much less, and hosts sum so much less before their next call."""
    less = np.rint(less_ns.clip(min=0)).astype(np.int64)
    return doing_less_behind(run, summing_ns, transferring_less(run, less, lag_ns))
