"""Units of sharded parameters far smaller than others, and the run with them part of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.causal.edits.run_edits import needing_nobody
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.rules._latency import Latency, Served
from commtrace.rules._less import sharded
from commtrace.rules._small_rows import SmallRows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SHARDING", "small_units"]

SHARDING = ("all_gather", "reduce_scatter")
"""What gathers the parameters of units and reduces their gradients."""
_FAR_SMALLER = 10


def small_units(run: Measures, some: Served, known: Latency, min_share: float) -> SmallRows | None:
    """Of operations of one kind those of units a tenth as large as the largest, or smaller.

    Parameters and gradients wait for nothing but their own rank's work, so that they can go with
    those of a larger unit whatever is computed in between. None where there are no such units.
    """
    its = some.operations
    size = its.ints("size_bytes")
    if its.coded("op").at(0) not in SHARDING or not sharded(run):
        return None
    is_small = (known.ns > min_share * some.typical_ns) & (size <= known.most_bytes)
    small = some.take(is_small & (_FAR_SMALLER * size <= size.max(initial=0)))
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
        share=min(known.ns / float(np.median(small.typical_ns)), 1.0),
        mean_ns=float(took_ns.mean()),
        estimate_ns=float(took_ns.sum()),
        in_one=without,
    )
