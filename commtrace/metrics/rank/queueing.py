"""How long operations queue between the call that enqueues them and their start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64, codes, first_rows
from commtrace.measures import measure
from commtrace.quantiles import quantiles
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["QUEUEING", "queueing"]

_KIND = ("op", "group", "dtype", "size_bytes")

QUEUEING = Table(
    "queueing",
    "all operations of one kind on all ranks; what queued longest comes first",
    (
        Column("op", "category", "The operation called; null if unknown."),
        Column("group", "category", "The process group's name; null if unknown."),
        Column("dtype", "category", "torch's name of the element type."),
        Column("size_bytes", "Int64", "S, the full array: the larger of in and output.", "bytes"),
        Column("count", "int64", "Operations with a known launch, over all ranks.", "operations"),
        Column("queue_ns_p50", "int64", "Median time from launch to start.", "ns"),
        Column("queue_ns_p95", "int64", "95th percentile of it.", "ns"),
        Column("duration_ns_p50", "int64", "Median time from start to end.", "ns"),
        Column("duration_ns_p95", "int64", "95th percentile of it.", "ns"),
    ),
)


@measure
def queueing(run: Measures) -> Rows:
    """Queueing apart from execution, as ``QUEUEING``.

    gloo: from the call to when one of its threads starts the work. A GPU: from the launch
    to when the kernel starts, which is behind what its stream had still to do. A negative
    time means that the clocks of host and GPU disagree. Operations without a known launch
    are left out.
    """
    launched = np.flatnonzero(run.rows("collectives").ints("launch_ns") != NULL)
    called = run.rows("collectives", launched)
    start_ns, duration_ns = called.ints("start_ns"), called.ints("duration_ns")
    queue_ns = start_ns - called.ints("launch_ns")
    kind = codes(*(called.columns[name] for name in _KIND))
    first = first_rows(kind)
    kinds = run.rows("collectives", launched[first])

    def quantile(times_ns: Int64, percent: float) -> Int64:
        return np.rint(quantiles(kind, times_ns, percent, first.size)).astype(np.int64)

    found = QUEUEING.rows(
        {
            **{name: kinds.columns[name] for name in _KIND},
            "count": np.bincount(kind),
            "queue_ns_p50": quantile(queue_ns, 50),
            "queue_ns_p95": quantile(queue_ns, 95),
            "duration_ns_p50": quantile(duration_ns, 50),
            "duration_ns_p95": quantile(duration_ns, 95),
        }
    )
    return found.take(np.argsort(-found.ints("queue_ns_p50"), kind="stable"))
