"""What each kind of collective cost, and how fast it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commtrace.comms import POINT_TO_POINT, bus_factor
from commtrace.intervals import covered
from commtrace.metrics.activity import by_device, joined, work
from commtrace.schema import Column, Table, rows

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.trace import Trace

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

__all__ = ["COLLECTIVES", "collectives"]

COLLECTIVES = Table(
    "collectives",
    "all operations of one kind: same operation, group, type and size; costliest first",
    (
        Column("op", "category", "The operation called; null where the trace does not tell."),
        Column("group", "category", "The process group's name; null if untold."),
        Column("group_size", "Int64", "Ranks in the group.", "ranks"),
        Column("dtype", "category", "torch's name of the element type."),
        Column("size_bytes", "Int64", "S, the full array: the larger of in and output.", "bytes"),
        Column(
            "count", "int64", "Operations: one counts once, on however many ranks.", "operations"
        ),
        Column("complete", "Int64", "Operations seen on every rank of the group.", "operations"),
        Column("duration_ns_p50", "int64", "Median over operations and ranks.", "ns"),
        Column("duration_ns_p95", "int64", "95th percentile over operations and ranks.", "ns"),
        Column("duration_ns_total", "int64", "Sum over operations and ranks.", "ns"),
        Column("transfer_ns_p50", "Int64", "Median time from last arrival to last end.", "ns"),
        Column("wait_ns_total", "Int64", "Waiting for the last to arrive, over all ranks.", "ns"),
        Column("skew_ns_p50", "Int64", "Median time from first to last arrival.", "ns"),
        Column("algbw_gb_s", "float64", "S / time; null without a size.", "GB/s"),
        Column(
            "busbw_gb_s",
            "float64",
            "algbw x the factor of nccl-tests; null without size, group size or a factor.",
            "GB/s",
        ),
        Column("exposed_ns", "Int64", "Not hidden by compute: sum per rank, mean of ranks.", "ns"),
        Column(
            "bound",
            "category",
            "`exact` if bandwidth is over the transfer time; `lower` if over the duration, "
            "which includes waiting; null without bandwidth.",
        ),
    ),
)
_UNMATCHED = dict.fromkeys(("complete", "transfer_ns_p50", "wait_ns_total", "skew_ns_p50"))
_NOWHERE = np.empty(0, np.intp)
_KIND = ["op", "group", "group_size", "dtype", "size_bytes"]


def collectives(trace: Trace) -> pd.DataFrame:
    """What each kind of collective cost, as ``COLLECTIVES``.

    Bandwidth is that of nccl-tests (its PERFORMANCE.md) over the median duration: waiting
    for other ranks cannot be told from transfer without matching them, so it is a lower
    bound, and transfer, wait, skew and ``complete`` are null.
    """
    called = trace.collectives
    kind = called.groupby(_KIND, observed=True, dropna=False, sort=False).ngroup().to_numpy()
    events = called[["op", "seq", "rank", "duration_ns"]].assign(
        kind=kind, members=_members(trace), exposed_ns=_exposed_ns(trace)
    )
    duration = events.groupby("kind")["duration_ns"]
    first = np.unique(kind, return_index=True)[1]
    table = (
        called.iloc[first][_KIND]
        .astype(object)
        .set_axis(range(first.size))
        .assign(
            count=_counts(events),
            duration_ns_p50=duration.quantile(0.5).round().astype("int64"),
            duration_ns_p95=duration.quantile(0.95).round().astype("int64"),
            duration_ns_total=duration.sum(),
            exposed_ns=_exposed_per_rank(events),
        )
    )
    costliest_first = table.sort_values("duration_ns_total", ascending=False, kind="stable")
    return COLLECTIVES.from_rows(
        [{**row, **_bandwidth(row), **_UNMATCHED} for row in rows(costliest_first)]
    )


def _exposed_ns(trace: Trace) -> Float64:
    """Of each row, the time that no compute on its device covers; NaN where that is untold."""
    called = trace.collectives
    start = called["start_ns"].to_numpy()
    exposed = called["duration_ns"].to_numpy(dtype=np.float64, copy=True)
    places = called.groupby(["rank", "device"], observed=True, sort=False).indices
    for (rank, device, _), streams in by_device(work(trace)).items():
        at = places.get((rank, device), _NOWHERE)
        compute = joined([done for _, done in streams]).compute
        end = start[at] + called["duration_ns"].to_numpy()[at]
        exposed[at] -= np.nan if compute is None else covered(start[at], end, compute)
    return exposed


def _exposed_per_rank(events: pd.DataFrame) -> pd.Series[Any]:
    """Each rank's sum, then the mean over the ranks that took part."""
    sums = events.groupby(["kind", "rank"])["exposed_ns"].sum(min_count=1)
    return sums.groupby("kind").mean().round().astype("Int64")


def _members(trace: Trace) -> Int64:
    """A number for each row's group and its members: one name can stand for several groups."""
    members = {(row["rank"], row["group"]): row["ranks"] for row in rows(trace.groups)}
    numbers: dict[tuple[str | None, str | None], int] = {}
    of_rows = [
        numbers.setdefault((row["group"], members.get((row["rank"], row["group"]))), len(numbers))
        for row in rows(trace.collectives[["rank", "group"]])
    ]
    return np.asarray(of_rows, dtype=np.int64)


def _counts(events: pd.DataFrame) -> pd.Series[Any]:
    """Operations of each kind.

    Where every row has its number in its group, those of one number are one operation (or as
    many as one rank has under it: coalesced operations share theirs). Else no rank can have
    taken part in more than there were. Each row of point-to-point is one.
    """
    group = ["kind", "members"]
    told = events["seq"].notna().groupby([events[key] for key in group]).transform("all")
    numbered = events.assign(seq=events["seq"].where(told))
    taken = numbered.groupby([*group, "seq", "rank"], dropna=False).size()
    shared = taken.groupby([*group, "seq"], dropna=False).max().groupby("kind").sum()
    point_to_point = events["op"].isin(POINT_TO_POINT).groupby(events["kind"]).all()
    return shared.where(~point_to_point, events.groupby("kind").size())


def _bandwidth(row: dict[str, Any]) -> dict[str, Any]:
    op, size, n, duration = (row[k] for k in ("op", "size_bytes", "group_size", "duration_ns_p50"))
    algbw = size / duration if op and size is not None and duration else None
    factor = bus_factor(op, n) if op and n else None
    busbw = algbw * factor if algbw is not None and factor is not None else None
    return {
        "algbw_gb_s": algbw,
        "busbw_gb_s": busbw,
        "bound": None if algbw is None else "lower",
    }
