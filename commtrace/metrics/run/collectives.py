"""What each kind of collective cost, and how fast it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, Int64, codes, first_rows, least, most, rows_by
from commtrace.comms import SYNCHRONISING, bus_factor
from commtrace.matching import SAME_HOST_ERROR_NS
from commtrace.measures import measure
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.call_kinds import Kinds, costs, kinds, known_or_none, rounded
from commtrace.metrics.run.group_dimensions import DIMENSION
from commtrace.metrics.run.group_sizes import DEDUCED
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.moved_before import moved_before
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import quantiles
from commtrace.table import Coded, Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "COLLECTIVES",
    "COLLECTIVES_BY_DIMENSION",
    "collectives",
    "collectives_by_dimension",
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
            "null where no two ranks were compared, or a part had moved before, as to a root.",
            "ns",
        ),
        Column(
            "wait_ns_total",
            "Int64",
            "Waiting for others to arrive, over all ranks; at least that if not all are complete.",
            "ns",
        ),
        Column("skew_ns_p50", "Int64", "Median time from first to last arrival.", "ns"),
        Column(
            "algbw_gb_s",
            "float64",
            "S / time; null without a size, and where others reach a root far apart: a part has "
            "moved before the last comes.",
            "GB/s",
        ),
        Column(
            "busbw_gb_s",
            "float64",
            "algbw x the factor of nccl-tests; null without algbw, group size or a factor.",
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
        Column(
            "called_at",
            "category",
            "The program's line that nine tenths of the calls are at, or the two (`a; b`); null "
            "where the recording does not tell, or where they are at more.",
        ),
    ),
)
COLLECTIVES_BY_DIMENSION = Table(
    "collectives_by_dimension",
    "all operations of one kind, as in `collectives`, but sibling groups of a known dimension are "
    "taken together, and their name is null, and so are sizes that vary from step to step; "
    "costliest first",
    (
        *COLLECTIVES.columns,
        Column("groups", "int64", "Groups that are known.", "groups"),
        Column(
            "sizes",
            "int64",
            "Different sizes: where they vary from step to step, `size_bytes` is their median.",
            "sizes",
        ),
    ),
)
_MOSTLY = 0.9  # of the calls
_LINES = 2  # that a kind has at most
_DIMENSION = [column.name for column in DIMENSION]
_KIND = ["op", "group", *_DIMENSION, "group_size", "dtype", "size_bytes"]


@measure
def collectives(run: Measures) -> Rows:
    """What each kind of collective cost, as ``COLLECTIVES``.

    Bandwidth is that of nccl-tests (its PERFORMANCE.md) over the median transfer: of the
    operations measured on every rank if there are any (``exact``). Else, in a collective that holds
    everybody until all are there, what a rank spent in it is at least the transfer, and
    bandwidth a ``lower`` bound. A sender, a receiver or a rank of a rooted operation can be
    done earlier or later than the transfer: without the other side bandwidth is null.
    """
    return COLLECTIVES.of_dicts(_costliest_first(run, kinds(run, _KIND)))


@measure
def collectives_by_dimension(run: Measures) -> Rows:
    """The same for sibling groups taken together, as ``COLLECTIVES_BY_DIMENSION``."""
    each = kinds(run, _KIND, by_dimension=True)
    return COLLECTIVES_BY_DIMENSION.of_dicts(_costliest_first(run, each))


def _costliest_first(run: Measures, each: Kinds) -> list[dict[str, Any]]:
    """A row for each kind."""
    once = first_rows(each.kernel)
    duration_ns = (each.events.end_ns - each.events.start_ns)[once]
    columns: dict[str, list[Any]] = {
        "executed": _first_known(each, each.events.executed),
        "called_at": _mostly(each, run.rows("collectives").coded("called_at")),
        DEDUCED.name: _first_known(each, each.events.deduced),
        **{
            f"duration_ns_p{q}": rounded(quantiles(each.of[once], duration_ns, q, len(each.rows)))
            for q in (50, 95)
        },
        **costs(run, each),
        **_compared(run, each),
    }
    table = [
        {**row, **dict(zip(columns, its, strict=True))}
        for row, *its in zip(each.rows, *columns.values(), strict=True)
    ]
    return [{**row, **_bandwidth(row)} for row in sorted(table, key=_order)]


def _first_known(each: Kinds, names: Coded) -> list[str | None]:
    """Of each kind the first name that there is."""
    known = np.flatnonzero(names.codes >= 0)
    first = np.full(len(each.rows), -1)
    first[each.of[known[::-1]]] = names.codes[known[::-1]]
    return Coded(first.astype(np.int32), names.names).decoded()


def _mostly(each: Kinds, lines: Coded) -> list[str | None]:
    """Of each kind the line that nearly all of its rows have, or the two that they have."""
    count = len(each.rows)
    found: list[str | None] = [None] * count
    if not lines.names:
        return found
    number = codes(each.of, lines)
    first = first_rows(number)
    kind, line, rows = each.of[first], lines.codes[first], np.bincount(number)
    needed = _MOSTLY * np.bincount(each.of, minlength=count)
    for (one,), at in rows_by(kind).items():
        known = at[line[at] >= 0]
        most = known[np.argsort(-rows[known], kind="stable")][:_LINES]
        so_many = int(np.searchsorted(np.cumsum(rows[most]), needed[one])) + 1
        if so_many <= most.size:
            found[one] = "; ".join(lines.names[code] for code in line[most[:so_many]].tolist())
    return found


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return -row["duration_ns_total"], *(str(row[name]) for name in _KIND)


@measure
def _clock_error_ns(run: Measures) -> Int64:
    """How far apart two clocks of each operation's ranks may be; NULL where that is unknown."""
    clocks, of = matched(run).clock, operation_of(run)
    at = np.searchsorted(clocks.ints("rank"), run.rows("collectives").ints("rank"))
    clock, error = (clocks.ints(name)[at] for name in ("clock", "error_ns"))
    count = len(matched(run).operations)
    low, high, furthest = least(of, clock, count), most(of, clock, count), most(of, error, count)
    return np.where(high > low, furthest, SAME_HOST_ERROR_NS)


def _compared(run: Measures, each: Kinds) -> dict[str, list[Any]]:
    """Of each kind, what its operations tell that were matched: one operation counts once."""
    its, count = each.events, len(each.rows)
    operation = codes(each.of, its.of)
    first = first_rows(operation)
    kind, of = each.of[first], its.of[first]
    shared = np.bincount(operation, its.shared, first.size) > 0
    table = matched(run).operations
    present, expected, skew_ns, transfer_ns = (
        table.ints(name)[of] for name in ("present", "expected", "skew_ns", "transfer_ns")
    )
    error_ns, op = _clock_error_ns(run)[of], its.named["op"]
    assert isinstance(op, Coded)
    synchronises = op.where(SYNCHRONISING.__contains__)[first]
    measured = (transfer_ns != NULL) & (error_ns != NULL) & table.flags("exact")[of]
    measured &= transfer_ns > TRUST * np.where(error_ns == NULL, 0, error_ns)
    measured &= ~moved_before(run)[of]
    whole = measured & ~shared
    at_most = (present > 1) & (measured | synchronises)
    of_kind = np.bincount(kind, whole, count) > 0
    timed = (whole | (at_most & ~of_kind[kind])) & (transfer_ns != NULL)
    skewed, known = skew_ns != NULL, expected != NULL
    complete = np.bincount(kind, known & (present == expected), count).astype(np.int64)
    any_known = np.bincount(kind, known, count) > 0
    return {
        "exact": of_kind.tolist(),
        "complete": known_or_none(complete, any_known),
        "transfer_ns_p50": rounded(quantiles(kind[timed], transfer_ns[timed], 50, count)),
        "skew_ns_p50": rounded(quantiles(kind[skewed], skew_ns[skewed], 50, count)),
    }


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
