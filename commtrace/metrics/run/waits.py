"""Who arrived when, who waited for whom, and what was left to transfer.

Definitions: a rank *arrives* when its kernel (on gloo its operation) starts, on the run's
clock. In a synchronising collective everybody waits for the last to arrive. A broadcast
or scatter waits for its root, a reduce or gather only on its root, for the others; of a
send and its recv the earlier waits for the later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace import matching
from commtrace.arrays import NULL
from commtrace.diagnosis import Note
from commtrace.few_bytes import packed
from commtrace.measures import measure
from commtrace.metrics.run.arrivals import Arrivals
from commtrace.packed import Packed, PackedColumns, pack
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "OPERATIONS",
    "WAITS",
    "RunOperations",
    "matched",
    "operations",
    "unmatched",
    "waits",
]

WAITS = Table(
    "waits",
    "one row of `collectives`, in the same order",
    (
        Column("operation", "int64", "The operation's number: equal on all its ranks."),
        Column("rank", "int64", "The rank."),
        Column(
            "arrival_ns", "Int64", "When it arrived, on the run's clock; null if unknown.", "ns"
        ),
        Column("end_ns", "Int64", "When it was done, on the run's clock; null if unknown.", "ns"),
        Column(
            "wait_ns",
            "Int64",
            "Its waiting for others; 0 where below three clock errors; a lower bound where ranks "
            "are missing; null where no other rank, no root or no common clock is known.",
            "ns",
        ),
        Column(
            "caused_wait_ns",
            "Int64",
            "The others' waiting, if they waited for it: the last to arrive, or a late root.",
            "ns",
        ),
        Column("last", "bool", "Whether it arrived last, by more than three clock errors."),
    ),
)

OPERATIONS = Table(
    "operations",
    "one operation of the run, on all its ranks",
    (
        Column("operation", "int64", "Its number."),
        Column("group", "category", "The process group's name on its lowest rank."),
        Column("communicator", "category", "The process group's identity across ranks."),
        Column("seq", "Int64", "Its number in its group on its lowest rank; null if unknown."),
        Column("op", "category", "The operation called; `send` for a send with its recv."),
        Column("dtype", "category", "torch's name of the element type."),
        Column("size_bytes", "Int64", "S, the full array; the largest rank's.", "bytes"),
        Column("matched_by", "category", "How its ranks were matched; null where only one was."),
        Column("present", "int64", "Ranks whose rows were matched.", "ranks"),
        Column("expected", "Int64", "Ranks that took part; null if unknown.", "ranks"),
        Column(
            "first_arrival_ns", "Int64", "When the first rank arrived, on the run's clock.", "ns"
        ),
        Column("last_arrival_ns", "Int64", "When the last rank arrived, on the run's clock.", "ns"),
        Column("last_end_ns", "Int64", "When the last rank was done, on the run's clock.", "ns"),
        Column("last_rank", "Int64", "The last to arrive; null if the clocks' error hides it."),
        Column(
            "root",
            "Int64",
            "The global rank of a rooted operation's root; where no call names it, the one that "
            "all others waited for, or that alone waited; null if unknown.",
        ),
        Column(
            "skew_ns",
            "Int64",
            "Last less first arrival; 0 where below three clock errors; null for one rank.",
            "ns",
        ),
        Column(
            "transfer_ns",
            "Int64",
            "From the last arrival (of a broadcast or scatter, each rank's or the root's; of "
            "messages of one kernel that of all their peers) to the last end (of such messages to "
            "the first); the shortest duration where below three clock errors or not `exact`.",
            "ns",
        ),
        Column(
            "exact",
            "bool",
            "Whether every rank was matched, on one clock: else waits are lower bounds and "
            "transfer is an upper one.",
        ),
    ),
)


class RunOperations(Struct, frozen=True):
    """A run's operations across ranks: tables MATCHES, CLOCK, WAITS and OPERATIONS."""

    matches: Packed
    clock: Rows
    waits: Packed
    by_operation: Packed
    notes: tuple[Note, ...]

    @property
    def operations(self) -> Rows:
        """Every operation: OPERATIONS, whose columns are unpacked when they are asked for."""
        return self.by_operation.all


@measure
def matched(run: Measures) -> RunOperations:
    """The run's operations, matched across its ranks and timed on one clock."""
    found = matching.match(run)
    rows = Arrivals(run, found)
    matches = pack(found.matches.columns)
    waits = PackedColumns({**_waits(rows).packed, "operation": matches.packed["operation"]})
    operations = _operations(rows, run, found.matches)
    return RunOperations(
        Packed(matching.MATCHES, [matches]),
        found.clock,
        Packed(WAITS, [waits]),
        Packed(OPERATIONS, [operations.columns]),
        found.notes,
    )


def waits(run: Measures) -> Rows:
    """Arrival and wait of every rank in every operation: WAITS."""
    return matched(run).waits.all


def operations(run: Measures) -> Rows:
    """Every operation of the run: OPERATIONS."""
    return matched(run).operations


def unmatched(run: Measures) -> tuple[Note, ...]:
    """What matching left open, or where it met a contradiction."""
    return matched(run).notes


def _waits(rows: Arrivals) -> PackedColumns:
    """The columns of WAITS but for the operation's number, which is that of MATCHES."""
    wait = rows.wait()
    columns = {
        "rank": rows.rank,
        "arrival_ns": np.where(rows.timed, rows.arrival, NULL),
        "end_ns": np.where(rows.timed, rows.end, NULL),
        "wait_ns": wait,
        "caused_wait_ns": rows.caused(wait),
        "last": rows.rank == rows.last_rank[rows.of],
    }
    back = np.argsort(rows.order)
    return PackedColumns({name: packed([values[back]]) for name, values in columns.items()})


def _operations(rows: Arrivals, run: Measures, matches: Rows) -> Rows:
    table = run.rows("collectives")
    of_lowest, found = run.rows("collectives", rows.lowest), matches.take(rows.lowest)
    timed = rows.all(rows.timed)
    several = rows.size > 1
    transfer, exact = rows.transfer()
    return OPERATIONS.rows(
        {
            "operation": rows.number,
            "group": of_lowest.coded("group"),
            "communicator": found.coded("communicator"),
            "seq": of_lowest.ints("seq"),
            "op": of_lowest.coded("op"),
            "dtype": rows.coded(table.coded("dtype")),
            "size_bytes": rows.max(table.ints("size_bytes")[rows.order]),
            "matched_by": rows.coded(matches.coded("matched_by")),
            "present": rows.size,
            "expected": found.ints("expected"),
            "first_arrival_ns": np.where(timed, rows.first, NULL),
            "last_arrival_ns": np.where(timed, rows.tau, NULL),
            "last_end_ns": np.where(timed, rows.max(rows.end), NULL),
            "last_rank": rows.last_rank,
            "root": rows.root,
            "skew_ns": np.where(
                rows.comparable & several, rows.beyond_error(rows.tau - rows.first), NULL
            ),
            "transfer_ns": transfer,
            "exact": exact,
        }
    )
