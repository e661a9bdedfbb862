"""The program's labelled ranges (``record_function``) side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import Bool, codes
from commtrace.comms import SYNCHRONISING, bus_factor
from commtrace.measures import measure
from commtrace.metrics.rank.labels import Labels, is_own, labels
from commtrace.metrics.rank.phases import launching_threads
from commtrace.metrics.rank.range_times import range_times
from commtrace.metrics.run.collectives import INTERVAL
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.question import question
from commtrace.metrics.run.waits import matched
from commtrace.table import Column, Table, rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["RANGES", "ranges"]

_PER_RANGE = "a range; mean over its ranges"
RANGES = Table(
    "ranges",
    "all labelled ranges (`record_function`) of one label within another, on all ranks; the "
    "program's own labels come first, then those of PyTorch and what is built on it; who encloses "
    "comes before what it encloses. Work belongs to the ranges whose host launched it",
    (
        Column("label", "category", "The label."),
        Column(
            "parent",
            "category",
            "The innermost of the program's own labels around it; null if there is none.",
        ),
        Column(
            "count",
            "int64",
            "Ranges, over all ranks; without ranks on which none of them launched anything, if "
            "on others some did.",
            "ranges",
        ),
        Column(
            "duration_ns_p50",
            "int64",
            "Median time: how long the host was in it, or from the first start to the last end "
            "of what it launched on GPUs where that is longer.",
            "ns",
        ),
        Column("duration_ns_p95", "int64", "95th percentile of it.", "ns"),
        Column("host_ns_p50", "int64", "Median time that the host was in it, done or not.", "ns"),
        Column(
            "ratio_to_fastest",
            "float64",
            "Its median time / the shortest among the program's own labels with the same parent, "
            "of those that a workload compares if it says which; null for others.",
        ),
        Column(
            "compute_ns",
            "Int64",
            f"While any compute ran that it launched, in {_PER_RANGE}. "
            "Null where the trace lacks the device's compute.",
            "ns",
        ),
        Column(
            "exposed_communication_ns",
            "Int64",
            f"While communication ran that it launched, and no compute on that device, in "
            f"{_PER_RANGE}. Null where the trace lacks the device's compute.",
            "ns",
        ),
        Column(
            "overlapped_communication_ns",
            "Int64",
            f"While communication ran that it launched, and any compute on that device, in "
            f"{_PER_RANGE}. Null where the trace lacks the device's compute.",
            "ns",
        ),
        Column(
            "size_bytes",
            "Int64",
            f"S of all operations that it launched, in {_PER_RANGE}. Null without communication, "
            "or if a size is unknown.",
            "bytes",
        ),
        Column(
            "busbw_gb_s",
            "float64",
            "What its operations put on the bus, S x the factor of nccl-tests, / the time of "
            "their transfers; of all that are known of. Null if none is.",
            "GB/s",
        ),
    ),
)
_MEAN = {
    "compute_ns": "compute_ns",
    "exposed_communication_ns": "exposed_ns",
    "overlapped_communication_ns": "overlapped_ns",
    "size_bytes": "size_bytes",
}


@measure
def ranges(run: Measures) -> pd.DataFrame:
    """What each labelled range cost, as ``RANGES``.

    Work whose launch the trace does not show belongs to no range.
    """
    its = labels(run)
    if not its.label.size:
        return RANGES.from_rows([])
    # A row of the table is a label in a parent: one number.
    row = its.label * (len(its.names) + 1) + np.where(its.parent < 0, 0, 1 + its.label[its.parent])
    operations = _operations(run, its)
    each = _each(run, its, operations).assign(row=row)
    each = each[_took_part(each)]
    by_row = each.groupby("row", sort=False)
    middle = by_row[["duration_ns", "host_ns"]].quantile(0.5).round().astype("int64")
    busbw = _busbw(operations.assign(row=row[operations["range"]]))
    table = pd.DataFrame(
        {
            "count": by_row.size(),
            "duration_ns_p50": middle["duration_ns"],
            "duration_ns_p95": by_row["duration_ns"].quantile(0.95).round().astype("int64"),
            "host_ns_p50": middle["host_ns"],
            **_means(by_row),
        }
    )
    names = np.array([*its.names, None], dtype=object)
    label, parent = np.divmod(table.index.to_numpy(), len(its.names) + 1)
    table = table.assign(label=names[label], parent=names[parent - 1], busbw_gb_s=busbw)
    return RANGES.from_rows(_in_order(_compared(rows(table), _ways(run))))


def _each(run: Measures, its: Labels, operations: pd.DataFrame) -> pd.DataFrame:
    """One row per range."""
    times = range_times(run)
    size = operations["size_bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    unsized = (operations["op"] == "barrier").to_numpy(dtype=bool)
    at = operations["range"].to_numpy()
    sizes = np.bincount(at, weights=np.where(unsized, 0, size), minlength=its.label.size)
    return pd.DataFrame(
        {
            "rank": its.rank,
            "duration_ns": times.done_ns - times.begin_ns,
            "host_ns": its.end_ns - its.start_ns,
            "worked": times.worked,
            "compute_ns": times.compute_ns,
            "exposed_ns": times.exposed_ns,
            "overlapped_ns": times.overlapped_ns,
            "size_bytes": sizes,
        }
    )


def _took_part(each: pd.DataFrame) -> Bool:
    """Whether a range's rank launched anything under its label, if any rank did."""
    worked = each["worked"].to_numpy()
    on_rank, row = codes(each["row"], each["rank"]), codes(each["row"])
    its_rank, nobody = np.bincount(on_rank, worked) > 0, np.bincount(row, worked) == 0
    took_part: Bool = its_rank[on_rank] | nobody[row]
    return took_part


def _means(by_row: Any) -> dict[str, pd.Series[Any]]:
    """Of each row over its ranges; null where unknown of one, and where no size is."""
    known, size = by_row[list(_MEAN.values())], by_row.size()
    means: pd.DataFrame = known.sum().div(size, axis=0).where(known.count().eq(size, axis=0))
    means["size_bytes"] = means["size_bytes"].where(means["size_bytes"] > 0)
    means = means.round().astype("Int64")
    return {name: means[column] for name, column in _MEAN.items()}


def _operations(run: Measures, its: Labels) -> pd.DataFrame:
    """One row per operation, rank and range that it was launched in."""
    needed = ["op", "size_bytes", "group_size", "launch_ns", *INTERVAL]
    called = run.collective_columns[needed].assign(thread=launching_threads(run))
    at, ranges = its.around(its.innermost(called))
    found = matched(run)
    kernel = codes(*(called[name] for name in INTERVAL))
    of = operation_of(run)[at]
    columns = {
        **{name: called[name].array[at] for name in ("op", "size_bytes", "group_size")},
        "operation": found.waits["operation"].array[at],
        "shared": np.bincount(kernel)[kernel][at],
        "range": ranges,
        **{name: found.operations[name].array[of] for name in ("expected", "transfer_ns", "exact")},
    }
    return pd.DataFrame(columns, copy=False)


def _busbw(operations: pd.DataFrame) -> pd.Series[Any]:
    """Of each row, over its operations: one counts once, on however many ranks."""
    # No trace tells the group of every send; of how many ranks it is does not matter there.
    group_size = operations.groupby("operation")["group_size"].transform("max")
    group_size = group_size.fillna(operations["expected"])
    size = operations.groupby("operation")["size_bytes"].transform("max")
    once = operations.assign(group_size=group_size, size_bytes=size)
    once = once.drop_duplicates(["row", "operation"]).dropna(
        subset=["op", "size_bytes", "group_size", "transfer_ns"]
    )
    once = once[once["exact"] | once["op"].isin(SYNCHRONISING)]
    kinds = zip(once["op"], once["group_size"].tolist(), strict=True)
    factors = np.array([bus_factor(op, n) for op, n in kinds], dtype=np.float64)
    factor = pd.Series(factors, index=once.index)
    # Operations that share a kernel share its time.
    time = (once["transfer_ns"].astype("float64") / once["shared"]).where(factor.notna())
    sums = pd.DataFrame({"bytes": once["size_bytes"].astype("float64") * factor, "ns": time})
    sums = sums.groupby(once["row"]).sum()
    return (sums["bytes"] / sums["ns"]).where((sums["ns"] > 0) & (sums["bytes"] > 0))


def _ways(run: Measures) -> frozenset[str]:
    """The labels that a recorded workload compares; empty if it does not say."""
    asked = question(run)
    return frozenset(asked.labels) if asked else frozenset()


def _compared(table: list[dict[str, Any]], ways: Collection[str]) -> list[dict[str, Any]]:
    """The rows with ``ratio_to_fastest``."""
    siblings: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for row in table:
        if row["label"] in ways if ways else is_own(row["label"]):
            siblings[row["parent"]].append(row)
    ratio: dict[int, float] = {}
    for its in siblings.values():
        fastest = min(row["duration_ns_p50"] for row in its)
        ratio |= {id(row): row["duration_ns_p50"] / fastest for row in its if fastest}
    return [{**row, "ratio_to_fastest": ratio.get(id(row))} for row in table]


def _in_order(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Own labels first, each before what it encloses; else as the program has them."""
    within: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for row in reversed(table):
        within[row["parent"]].append(row)
    found: list[dict[str, Any]] = []
    waiting = within.pop(None, [])
    while waiting:
        row = waiting.pop()
        found.append(row)
        waiting += within.pop(row["label"], [])
    return sorted(found, key=lambda row: not is_own(row["label"]))
