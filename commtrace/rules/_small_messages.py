"""Small messages in a row, and the run with one in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import codes, least, most, sums
from commtrace.causal.edits.run_edits import joined
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.metrics.run.message_rows import message_rows
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, quantile
from commtrace.rules._latency import Latency
from commtrace.rules._small_rows import SmallRows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["small_messages"]

_SELDOM = 0.1  # of the messages
_BYTES_PER_NS = 1.0  # of a slow link


def small_messages(run: Measures) -> SmallRows | None:
    """Those that follow one another between two ranks on CPUs; None where there are none.

    One needs what the quickest tenth of them take once both ranks are there.
    """
    its = message_rows(run)
    if not its.row.size:
        return None
    took_ns = its.end_ns - its.arrival_ns
    latency_ns = quantile(took_ns.astype(np.float64), _SELDOM)
    row = codes(its.row)
    count = np.bincount(row)
    size = sums(row, its.size_bytes, count.size)
    in_one_ns = latency_ns + size / _BYTES_PER_NS
    start = least(row, its.arrival_ns, count.size)
    of_row_ns = most(row, its.end_ns, count.size) - start
    first = np.diff(row, prepend=-1) != 0
    last = np.append(first[1:], True)

    def edit(lag_ns: Lags) -> Lags:
        operation = run_graph(run).calls.operation
        times = np.zeros(1 + max(int(operation.max()), int(its.operation.max())))
        times[its.operation[last]] = in_one_ns
        later, gone = (np.isin(operation, its.operation[~flags]) for flags in (first, last))
        return joined(run, later, gone, times[operation], lag_ns)

    return SmallRows(
        matched(run).operations.take(its.operation),
        int((count - 1).sum()),
        Latency(latency_ns, "of the quickest messages", int(its.size_bytes.max()), latency_ns),
        min(latency_ns / max(median(took_ns), 1.0), 1.0),
        float(of_row_ns.sum()) / row.size,
        float((of_row_ns - in_one_ns).clip(min=0).sum()),
        edit,
    )
