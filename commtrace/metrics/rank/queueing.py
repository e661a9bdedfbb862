"""How long operations queue between the call that enqueues them and their start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.measures import measure
from commtrace.table import Column, Table, rows

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["QUEUEING", "queueing"]

_KIND = ["op", "group", "dtype", "size_bytes"]
_MEASURES = {
    "queue_ns_p50": ("queue_ns", 0.5),
    "queue_ns_p95": ("queue_ns", 0.95),
    "duration_ns_p50": ("duration_ns", 0.5),
    "duration_ns_p95": ("duration_ns", 0.95),
}

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
def queueing(run: Measures) -> pd.DataFrame:
    """Queueing apart from execution, as ``QUEUEING``.

    gloo: from the call to when one of its threads starts the work. A GPU: from the launch
    to when the kernel starts, which is behind what its stream had still to do. A negative
    time means that the clocks of host and GPU disagree. Operations without a known launch
    are left out.
    """
    needed = [*_KIND, "launch_ns", "start_ns", "duration_ns"]
    called = run.collective_columns[needed].dropna(subset="launch_ns")
    called = called.assign(queue_ns=called["start_ns"] - called["launch_ns"])
    kinds = called.groupby(_KIND, observed=True, dropna=False, sort=False)
    table = kinds.size().rename("count").reset_index()
    for name, (column, share) in _MEASURES.items():
        quantile = kinds[column].quantile(share).round().astype("int64")
        table[name] = quantile.to_numpy()
    longest_first = table.sort_values("queue_ns_p50", ascending=False, kind="stable")
    return QUEUEING.from_rows(rows(longest_first))
