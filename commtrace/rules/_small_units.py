"""Units of sharded parameters far smaller than others, and the run with them part of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, among, distinct
from commtrace.causal.edits.run_edits import needing_nobody
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.metrics.run.decompositions import pairs
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median
from commtrace.rules._latency import Latency, Served
from commtrace.rules._less import OF_SHARDS, sharded
from commtrace.rules._small_rows import SmallRows

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["small_units"]

_FAR_SMALLER = 10


def small_units(run: Measures, some: Served, known: Latency, min_share: float) -> SmallRows | None:
    """Of operations of one kind those of units a tenth as large as the largest, or smaller.

    Parameters and gradients wait for nothing but their own rank's work, so that they can go with
    those of a larger unit whatever is computed in between. Of as many elements as are gathered
    gradients are reduced: what is gathered alone, as metrics, is of no unit, and neither is what is
    reduced and gathered at once. None where there are no such units.
    """
    its = some.operations
    size, op, dtype = its.ints("size_bytes"), its.coded("op").at(0), its.coded("dtype").at(0)
    if op not in OF_SHARDS or dtype is None or not sharded(run):
        return None
    is_small = (known.ns > min_share * some.typical_ns) & (size <= known.most_bytes)
    is_small &= _FAR_SMALLER * size <= size.max(initial=0)
    is_small &= np.isin(elements(its), _of_both(run, its)) & ~_summed(run, its)
    small = some.take(is_small)
    count = len(small.operations)
    if not count:
        return None
    number, took_ns = (small.operations.ints(name) for name in ("operation", "transfer_ns"))

    def without(lag_ns: Lags) -> Lags:
        return needing_nobody(run, np.isin(run_graph(run).calls.operation, number), lag_ns)

    return SmallRows(
        joining=small.operations,
        fewer=count,
        latency=known,
        share=min(known.ns / median(small.typical_ns), 1.0),
        mean_ns=float(took_ns.mean()),
        estimate_ns=float(took_ns.sum()),
        in_one=without,
    )


def _summed(run: Measures, its: Rows) -> Bool:
    """Which are halves of an all_reduce, as of activations: nothing works on a part in between."""
    halves = [
        pair.times.ints(half) for pair in pairs(run) for half in ("operation", "operation_second")
    ]
    return among(its.ints("operation"), np.concatenate([np.empty(0, np.int64), *halves]))


def _of_both(run: Measures, its: Rows) -> Int64:
    """How many elements are both gathered and reduced in the group of some operations."""
    every = matched(run).operations
    mine = every.coded("communicator").being(str(its.coded("communicator").at(0)))
    known = mine & every.coded("dtype").known & (every.ints("size_bytes") != NULL)
    one, other = (elements(every.take(known & every.coded("op").being(op))) for op in OF_SHARDS)
    return distinct(one[among(one, other)])
