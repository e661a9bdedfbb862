"""The program's labelled ranges (``record_function``) side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from math import fsum
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int64, codes, first_rows, most
from commtrace.comms import SYNCHRONISING, bus_factor
from commtrace.measures import measure
from commtrace.metrics.rank.labels import Labels, is_own, labels
from commtrace.metrics.rank.phases import launching_threads, phase_of
from commtrace.metrics.rank.range_times import range_times
from commtrace.metrics.run.call_kinds import intervals, rounded
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.moved_before import moved_before
from commtrace.metrics.run.question import question
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import quantiles
from commtrace.table import Coded, Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["RANGES", "ranges"]

_UNKNOWN = 0.1  # of what is known: so little may be left out
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
            "of those that a workload compares if it says which; null for others, and where labels "
            "name phases of training, of which none does another's work.",
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
            "their transfers; of all that are known of. Null if none is, or if parts had "
            "moved to a root before all were there, of more than a tenth.",
            "GB/s",
        ),
        Column(
            "bound",
            "category",
            "`exact` if all of these operations were measured on every rank; `lower` if the time "
            "of some may include waiting; null without bandwidth.",
        ),
    ),
)


class _Operations(Struct, frozen=True, eq=False):
    """One entry for each operation, rank and range that it was launched in.

    ``of`` is the operation's row in ``operations``, ``shared`` how many share its interval.
    """

    range: Int64
    of: Int64
    op: Coded
    size_bytes: Int64
    group_size: Int64
    shared: Int64


@measure
def ranges(run: Measures) -> Rows:
    """What each labelled range cost, as ``RANGES``.

    Work whose launch the trace does not show belongs to no range.
    """
    its = labels(run)
    if not its.label.size:
        return RANGES.of_dicts([])
    # A row of the table is a label in a parent: one number.
    row = its.label * (len(its.names) + 1) + np.where(its.parent < 0, 0, 1 + its.label[its.parent])
    row, operations = codes(row), _operations(run, its)
    mine = np.flatnonzero(_took_part(run, its, row))
    shown = row[mine][first_rows(codes(row[mine]))]  # in the order of those that are left
    values = {
        "count": np.bincount(row[mine])[shown].tolist(),
        **_times(run, its, row, mine, shown),
        "size_bytes": [
            round(size) if size > 0 else None
            for size in _means(_sizes(its, operations), row, mine)[shown].tolist()
        ],
        **_busbw(run, operations, row, shown),
    }
    names = np.array([*its.names, None], dtype=object)
    one = first_rows(row)[shown]
    labelled = {
        "label": names[its.label[one]].tolist(),
        "parent": names[np.where(its.parent[one] < 0, -1, its.label[its.parent[one]])].tolist(),
    }
    columns = labelled | values
    table = [dict(zip(columns, its, strict=True)) for its in zip(*columns.values(), strict=True)]
    return RANGES.of_dicts(_in_order(_compared(table, _ways(run))))


def _took_part(run: Measures, its: Labels, row: Int64) -> Bool:
    """Whether a range's rank launched anything under its label, if any rank did."""
    worked, on_rank = range_times(run).worked, codes(row, its.rank)
    its_rank, nobody = np.bincount(on_rank, worked) > 0, np.bincount(row, worked) == 0
    took_part: Bool = its_rank[on_rank] | nobody[row]
    return took_part


def _times(
    run: Measures, its: Labels, row: Int64, mine: Int64, shown: Int64
) -> dict[str, list[int | None]]:
    times = range_times(run)
    done_ns, host_ns = times.done_ns - times.begin_ns, its.end_ns - its.start_ns
    middle = {
        "duration_ns_p50": (done_ns, 50),
        "duration_ns_p95": (done_ns, 95),
        "host_ns_p50": (host_ns, 50),
    }
    means = {
        "compute_ns": times.compute_ns,
        "exposed_communication_ns": times.exposed_ns,
        "overlapped_communication_ns": times.overlapped_ns,
    }
    count = int(row.max()) + 1
    return {
        **{
            name: rounded(quantiles(row[mine], time[mine], percent, count)[shown])
            for name, (time, percent) in middle.items()
        },
        **{name: rounded(_means(time, row, mine)[shown]) for name, time in means.items()},
    }


def _means(values: Float64, row: Int64, mine: Int64) -> Float64:
    """Of each row over its ranges; NaN where that of one is unknown."""
    count = np.bincount(row[mine], minlength=int(row.max()) + 1)
    total = np.bincount(row[mine], values[mine], count.size)
    return np.asarray(total / np.maximum(count, 1), dtype=np.float64)


def _operations(run: Measures, its: Labels) -> _Operations:
    table = run.rows("collectives")
    thread = launching_threads(run).values()
    launched = its.innermost(table.ints("rank"), table.ints("launch_ns"), thread)
    at, ranges = its.around(launched)
    # What one kernel sends and receives moves both ways at once.
    interval = codes(intervals(run), table.coded("op"))
    return _Operations(
        ranges,
        operation_of(run)[at],
        table.coded("op").take(at),
        table.ints("size_bytes")[at],
        table.ints("group_size")[at],
        np.bincount(interval)[interval][at],
    )


def _sizes(its: Labels, operations: _Operations) -> Float64:
    """What each range's operations sent; NaN if a size is unknown."""
    size = np.where(operations.size_bytes == NULL, np.nan, operations.size_bytes)
    size[operations.op.being("barrier")] = 0
    return np.bincount(operations.range, size, its.label.size).astype(np.float64)


def _busbw(run: Measures, each: _Operations, row: Int64, shown: Int64) -> dict[str, list[Any]]:
    """Of each shown row, over its operations: one counts once, on however many ranks."""
    found = matched(run).operations
    count, places = len(found), row[each.range]
    # No trace tells the group of every send; of how many ranks it is does not matter there.
    group_size, size = (most(each.of, its, count) for its in (each.group_size, each.size_bytes))
    group_size = np.where(group_size == NULL, found.ints("expected"), group_size)
    transfer_ns = found.ints("transfer_ns")
    known = (group_size != NULL) & (size != NULL) & (transfer_ns != NULL)
    once = first_rows(codes(places, each.of))
    counts = found.flags("exact")[each.of[once]]
    counts |= each.op.where(SYNCHRONISING.__contains__)[once]
    once = once[counts & known[each.of[once]] & (each.op.codes[once] >= 0)]
    inexact = places[once[~found.flags("exact")[each.of[once]]]]
    of, ops, before = each.of[once], each.op.decoded(), moved_before(run)
    sent: dict[int, list[float]] = defaultdict(list)
    took: dict[int, list[float]] = defaultdict(list)
    unknown: dict[int, float] = defaultdict(float)
    for at, n, its_bytes, its_ns in zip(
        once.tolist(),
        group_size[of].tolist(),
        size[of].tolist(),
        # Operations that share a kernel share its time.
        (transfer_ns[of] / each.shared[once]).tolist(),
        strict=True,
    ):
        place, factor = int(places[at]), bus_factor(str(ops[at]), n)
        if factor is not None and before[each.of[at]]:
            unknown[place] += its_bytes * factor
        elif factor is not None:
            sent[place].append(its_bytes * factor)
            took[place].append(its_ns)
    busbw = np.full(int(row.max()) + 1, np.nan)
    for place, its in sent.items():
        if sum(its) > 0 and sum(took[place]) > 0 and unknown[place] <= _UNKNOWN * sum(its):
            busbw[place] = fsum(its) / fsum(took[place])
    bound = np.where(np.isin(shown, inexact), "lower", "exact").astype(object)
    bound[np.isnan(busbw[shown])] = None
    return {"busbw_gb_s": busbw[shown].tolist(), "bound": bound.tolist()}


def _ways(run: Measures) -> frozenset[str]:
    """The labels that a recorded workload compares; empty if it does not say."""
    asked = question(run)
    return frozenset(asked.labels) if asked else frozenset()


def _compared(table: list[dict[str, Any]], ways: Collection[str]) -> list[dict[str, Any]]:
    """The rows with ``ratio_to_fastest``."""
    if not ways and any(is_own(row["label"]) and phase_of(row["label"]) for row in table):
        return [{**row, "ratio_to_fastest": None} for row in table]
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
