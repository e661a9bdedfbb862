"""What each kind of collective cost, and how fast it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, Float64, Int64, codes, integers
from commtrace.comms import SYNCHRONISING, bus_factor
from commtrace.intervals import covered
from commtrace.matching import SAME_HOST_ERROR_NS
from commtrace.measures import measure
from commtrace.metrics.rank.activity import calls_by_device, device_work
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.group_dimensions import DIMENSION, group_dimensions
from commtrace.metrics.run.group_sizes import DEDUCED, group_sizes
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched
from commtrace.table import Column, Table, rows

if TYPE_CHECKING:
    from pandas.core.groupby import SeriesGroupBy

    from commtrace.measures import Measures

__all__ = [
    "COLLECTIVES",
    "COLLECTIVES_BY_DIMENSION",
    "INTERVAL",
    "collectives",
    "collectives_by_dimension",
    "costs",
    "events_of_kinds",
]

COLLECTIVES = Table(
    "collectives",
    "all operations of one kind: same operation, group, type and size; costliest first",
    (
        Column("op", "category", "The operation called; null if unknown."),
        Column("executed", "category", "The operation that ran: gloo runs some as `all_reduce`."),
        Column("group", "category", "The process group's name; null if unknown."),
        *DIMENSION,
        Column("group_size", "Int64", "Ranks in the group.", "ranks"),
        DEDUCED,
        Column("dtype", "category", "torch's name of the element type."),
        Column("size_bytes", "Int64", "S, the full array: the larger of in and output.", "bytes"),
        Column(
            "count", "int64", "Operations: one counts once, on however many ranks.", "operations"
        ),
        Column(
            "complete",
            "Int64",
            "Operations measured on every rank that took part; null if those are unknown.",
            "operations",
        ),
        Column("duration_ns_p50", "int64", "Median over operations and ranks.", "ns"),
        Column("duration_ns_p95", "int64", "95th percentile over operations and ranks.", "ns"),
        Column(
            "duration_ns_total",
            "int64",
            "Sum over operations and ranks; what several share counts once.",
            "ns",
        ),
        Column(
            "transfer_ns_p50",
            "Int64",
            "Median time from last arrival to last end; at most that where bound is `lower`; "
            "null where no two ranks were compared.",
            "ns",
        ),
        Column(
            "wait_ns_total",
            "Int64",
            "Waiting for others to arrive, over all ranks; at least that if not all are complete.",
            "ns",
        ),
        Column("skew_ns_p50", "Int64", "Median time from first to last arrival.", "ns"),
        Column("algbw_gb_s", "float64", "S / time; null without a size.", "GB/s"),
        Column(
            "busbw_gb_s",
            "float64",
            "algbw x the factor of nccl-tests; null without size, group size or a factor.",
            "GB/s",
        ),
        Column(
            "exposed_ns",
            "Int64",
            "While any of them ran and no compute did: mean of the ranks that took part.",
            "ns",
        ),
        Column(
            "bound",
            "category",
            "`exact` if bandwidth is over the transfer time of operations measured on every rank; "
            "`lower` if the time may include waiting, or other operations; null without bandwidth.",
        ),
    ),
)
INTERVAL = ["rank", "device", "stream", "start_ns", "duration_ns"]
"""What distinguishes the kernels: coalesced operations share one."""
_TIME = ["transfer_ns", "error_ns", "exact"]
_OF_OPERATION = (
    *("communicator", "group_size", DEDUCED.name, "size_bytes", "present", "expected", "skew_ns"),
    *_TIME,
)
COLLECTIVES_BY_DIMENSION = Table(
    "collectives_by_dimension",
    "all operations of one kind, as in `collectives`, but sibling groups of a known dimension are "
    "taken together, and their name is null; costliest first",
    (*COLLECTIVES.columns, Column("groups", "int64", "Groups that are known.", "groups")),
)
_DIMENSION = [column.name for column in DIMENSION]
_KIND = ["op", "group", *_DIMENSION, "group_size", "dtype", "size_bytes"]


@measure
def collectives(run: Measures) -> pd.DataFrame:
    """What each kind of collective cost, as ``COLLECTIVES``.

    Bandwidth is that of nccl-tests (its PERFORMANCE.md) over the median transfer: of the
    operations measured on every rank if there are any (``exact``). Else, in a collective that holds
    everybody until all are there, what a rank spent in it is at least the transfer, and
    bandwidth a ``lower`` bound. A sender, a receiver or a rank of a rooted operation can be
    done earlier or later than the transfer: without the other side bandwidth is null.
    """
    return COLLECTIVES.from_rows(_costliest_first(run, events_of_kinds(run, _KIND)))


@measure
def collectives_by_dimension(run: Measures) -> pd.DataFrame:
    """The same for sibling groups taken together, as ``COLLECTIVES_BY_DIMENSION``."""
    events = events_of_kinds(run, _KIND, by_dimension=True)
    return COLLECTIVES_BY_DIMENSION.from_rows(_costliest_first(run, events))


def _costliest_first(run: Measures, events: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each kind."""
    by_kind, duration = events.groupby("kind"), _durations(events)
    table = (
        events.drop_duplicates("kind")
        .set_index("kind")[_KIND]
        .astype(object)
        .assign(
            executed=by_kind["executed"].first().astype(object),
            group_size_deduced=by_kind["group_size_deduced"].first().astype(object),
            duration_ns_p50=duration.quantile(0.5).round().astype("int64"),
            duration_ns_p95=duration.quantile(0.95).round().astype("int64"),
        )
        .join(costs(run, events))
        .join(_compared(events))
    )
    return [{**row, **_bandwidth(row)} for row in sorted(rows(table), key=_order)]


def costs(run: Measures, events: pd.DataFrame) -> pd.DataFrame:
    """Of each kind, operations and groups, and the time that they took from the ranks."""
    by_kind = events.groupby("kind")
    return pd.DataFrame(
        {
            "count": by_kind["operation"].nunique(),
            "groups": by_kind["communicator"].nunique(),
            "duration_ns_total": _durations(events).sum(),
            "wait_ns_total": _waiting(events),
            "exposed_ns": _exposed_per_rank(events, run),
        }
    )


def _durations(events: pd.DataFrame) -> SeriesGroupBy[Any, Any]:
    """Of each kind those of its kernels: one that several operations share counts once."""
    kernels = events.loc[~events["kernel"].duplicated(), ["kind", "duration_ns"]]
    return kernels.groupby("kind")["duration_ns"]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return -row["duration_ns_total"], *(str(row[name]) for name in _KIND)


def events_of_kinds(run: Measures, kind: list[str], *, by_dimension: bool = False) -> pd.DataFrame:
    """One row per operation and rank, with what its operation tells, its ``kind`` and ``kernel``.

    The kind is a number, equal where these columns are; the kernel one of each interval of a
    kind. With ``by_dimension``, groups of a known dimension have no name.

    An operation is of one kind on all its ranks, whatever each of them calls the group;
    of an uneven all_to_all the largest array counts.
    """
    found, table = matched(run), run.collective_columns
    its = found.operations.assign(error_ns=_clock_error_ns(run))
    for column in ("group_size", DEDUCED.name):
        its[column] = group_sizes(run)[column]  # which is in the order of operations, too
    communicator = its["communicator"].cat
    of_group = group_dimensions(run).set_index("communicator").reindex(communicator.categories)
    for column in _DIMENSION:
        its[column] = of_group[column].array.take(communicator.codes, allow_fill=True)
    of = operation_of(run)
    columns = {
        **{name: table[name].array for name in (*INTERVAL, "op", "executed")},
        **{name: found.waits[name].array for name in ("operation", "wait_ns")},
        **{name: its[name].array[of] for name in (*_OF_OPERATION, *_DIMENSION)},
    }
    events = pd.DataFrame(columns, copy=False)
    for name in ("group", "dtype"):
        events[name] = _first(table[name].array, of)
    if by_dimension:
        events["group"] = events["group"].where(events["dimension"].isna())
    events["kind"] = codes(*(events[name] for name in kind))
    interval = codes(*(events[name] for name in INTERVAL))
    events["shared"] = pd.Series(interval).duplicated(keep=False)
    events["kernel"] = codes(events["kind"], interval)
    return events


def _first(names: Any, of: Int64) -> pd.Categorical:
    """The first name that there is among the rows of each number, for every row."""
    first: Any = np.full(of.max(initial=-1) + 1, -1)
    known = np.flatnonzero(names.codes >= 0)[::-1]
    first[of[known]] = names.codes[known]
    return pd.Categorical.from_codes(first[of], dtype=names.dtype)


def _clock_error_ns(run: Measures) -> Any:
    """How far apart two clocks of each operation's ranks may be."""
    found, of = matched(run), operation_of(run)
    its = found.clock.set_index("rank").reindex(found.waits["rank"])
    clock, error = integers(its["clock"]), integers(its["error_ns"])
    count = len(found.operations)
    low, high, most = (
        np.full(count, clock.max(initial=0)),
        np.full(count, NULL),
        np.full(count, NULL),
    )
    np.minimum.at(low, of, clock)
    np.maximum.at(high, of, clock)
    np.maximum.at(most, of, error)
    most = np.where(high > low, most, SAME_HOST_ERROR_NS)
    return pd.arrays.IntegerArray(most, most == NULL)


def _compared(events: pd.DataFrame) -> pd.DataFrame:
    """Of each kind, what its operations tell that were matched: one operation counts once."""
    of = codes(events["kind"], events["operation"])
    shared = events["shared"].groupby(of).transform("any")
    first = ~pd.Series(of).duplicated()
    each = events.loc[first, ["kind", "op", "present", "expected", "skew_ns", *_TIME]]
    each = each.assign(shared=shared[first])
    kind = each["kind"]
    measured = (each["transfer_ns"] > TRUST * each["error_ns"]).fillna(value=False) & each["exact"]
    whole = measured & ~each["shared"]
    at_most = (each["present"] > 1) & (measured | each["op"].isin(SYNCHRONISING))
    exact = whole.groupby(kind).any()
    transfer = each["transfer_ns"].where(whole | (at_most & ~kind.map(exact)))
    complete = (each["present"] == each["expected"]).astype("Int64")
    return exact.to_frame("exact").assign(
        complete=complete.groupby(kind).sum(min_count=1),
        transfer_ns_p50=_median(transfer, kind),
        skew_ns_p50=_median(each["skew_ns"], kind),
    )


def _median(times: pd.Series[Any], kind: pd.Series[Any]) -> pd.Series[Any]:
    return times.groupby(kind).median().round().astype("Int64")


def _waiting(events: pd.DataFrame) -> pd.Series[Any]:
    """Each kind's waiting; a rank waits once in a kernel, however many operations share it."""
    kernel, wait = events["kernel"].to_numpy(), integers(events["wait_ns"])
    longest = np.full(kernel.max(initial=-1) + 1, NULL)
    np.maximum.at(longest, kernel, wait)
    once = pd.Series(pd.arrays.IntegerArray(longest, longest == NULL))
    kind = np.zeros(longest.size, dtype=np.int64)
    kind[kernel] = events["kind"]
    return once.groupby(kind).sum(min_count=1)


def _exposed_per_rank(events: pd.DataFrame, run: Measures) -> pd.Series[Any]:
    """Each rank's sum, then the mean over the ranks that took part."""
    exposed = events[["kind", "rank"]].assign(exposed_ns=_exposed_ns(events, run))
    sums = exposed.groupby(["kind", "rank"])["exposed_ns"].sum(min_count=1)
    return sums.groupby("kind").mean().round().astype("Int64")


def _exposed_ns(events: pd.DataFrame, run: Measures) -> Float64:
    """Of each row, the time that neither compute on its device nor its kind's rows before cover.

    NaN if the compute is unknown.
    """
    start = events["start_ns"].to_numpy()
    end = start + events["duration_ns"].to_numpy()
    order = np.argsort(start, kind="stable")
    place = codes(*(events[column] for column in ("kind", "rank", "device")))[order]
    reach = pd.Series(end[order]).groupby(place).cummax()
    before = np.empty_like(end)
    before[order] = reach.groupby(place).shift(fill_value=NULL)
    start = np.minimum(np.maximum(start, before), end)
    exposed: Float64 = (end - start).astype(np.float64)
    for device, done in device_work(run).items():
        at, compute = calls_by_device(run)[device], done.compute
        exposed[at] -= np.nan if compute is None else covered(start[at], end[at], compute)
    return exposed


def _bandwidth(row: dict[str, Any]) -> dict[str, Any]:
    op, size, n, transfer = (row[k] for k in ("op", "size_bytes", "group_size", "transfer_ns_p50"))
    time = row["duration_ns_p50"] if transfer is None and op in SYNCHRONISING else transfer
    algbw = size / time if size is not None and time else None
    factor = bus_factor(op, n) if op and n else None
    return {
        "algbw_gb_s": algbw,
        "busbw_gb_s": algbw * factor if algbw is not None and factor is not None else None,
        "bound": None if algbw is None else "exact" if row["exact"] else "lower",
    }
