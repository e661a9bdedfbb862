"""Who arrived when, who waited for whom, and what was left to transfer.

Definitions: a rank *arrives* when its kernel (on gloo its operation) starts, on the run's
clock. In a synchronising collective everybody waits for the last to arrive. A broadcast
or scatter waits for its root, a reduce or gather only on its root, for the others; of a
send and its recv the earlier waits for the later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace import matching
from commtrace.arrays import NULL, Bool, Int64, integers
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import Note
from commtrace.measures import measure
from commtrace.table import Coded, Column, Table

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.matching import Matched
    from commtrace.measures import Measures

__all__ = [
    "OPERATIONS",
    "TRUST",
    "WAITS",
    "RunOperations",
    "called_ns",
    "matched",
    "operations",
    "unmatched",
    "waits",
]

FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
TRUST = 3  # what is smaller than this many clock errors is not reported
FOREVER = np.iinfo(np.int64).max

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
            "skew_ns",
            "Int64",
            "Last less first arrival; 0 where below three clock errors; null for one rank.",
            "ns",
        ),
        Column(
            "transfer_ns",
            "Int64",
            "From the last arrival (of a broadcast or scatter, each rank's or the root's) to the "
            "last end; the shortest duration where below three clock errors or not `exact`.",
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

    matches: pd.DataFrame
    clock: pd.DataFrame
    waits: pd.DataFrame
    operations: pd.DataFrame
    notes: tuple[Note, ...]


@measure
def matched(run: Measures) -> RunOperations:
    """The run's operations, matched across its ranks and timed on one clock."""
    found = matching.match(run)
    rows = _Rows(run, found)
    waits, operations = _waits(rows), _operations(rows, run, found.matches)
    return RunOperations(found.matches, found.clock, waits, operations, found.notes)


def waits(run: Measures) -> pd.DataFrame:
    """Arrival and wait of every rank in every operation: WAITS."""
    return matched(run).waits


def operations(run: Measures) -> pd.DataFrame:
    """Every operation of the run: OPERATIONS."""
    return matched(run).operations


def unmatched(run: Measures) -> tuple[Note, ...]:
    """What matching left open, or where it met a contradiction."""
    return matched(run).notes


def _waits(rows: _Rows) -> pd.DataFrame:
    wait = rows.wait()
    columns = {
        "operation": rows.number[rows.of],
        "rank": rows.rank,
        "arrival_ns": np.where(rows.timed, rows.arrival, NULL),
        "end_ns": np.where(rows.timed, rows.end, NULL),
        "wait_ns": wait,
        "caused_wait_ns": rows.caused(wait),
        "last": rows.rank == rows.last_rank[rows.of],
    }
    back = np.argsort(rows.order)
    return WAITS.frame({name: values[back] for name, values in columns.items()})


def _operations(rows: _Rows, run: Measures, matches: pd.DataFrame) -> pd.DataFrame:
    table = run.collectives
    of_lowest, found = table.iloc[rows.lowest], matches.iloc[rows.lowest]
    timed = rows.all(rows.timed)
    several = rows.size > 1
    transfer, exact = rows.transfer()
    return OPERATIONS.frame(
        {
            "operation": rows.number,
            **{name: _coded(of_lowest[name]) for name in ("group", "op")},
            **{name: _coded(found[name]) for name in ("communicator",)},
            "dtype": rows.coded(table["dtype"]),
            "matched_by": rows.coded(matches["matched_by"]),
            "seq": integers(of_lowest["seq"]),
            "size_bytes": rows.max(integers(table["size_bytes"])[rows.order]),
            "present": rows.size,
            "expected": integers(found["expected"]),
            "first_arrival_ns": np.where(timed, rows.first, NULL),
            "last_arrival_ns": np.where(timed, rows.tau, NULL),
            "last_end_ns": np.where(timed, rows.max(rows.end), NULL),
            "last_rank": rows.last_rank,
            "skew_ns": np.where(
                rows.comparable & several, rows.beyond_error(rows.tau - rows.first), NULL
            ),
            "transfer_ns": transfer,
            "exact": exact,
        }
    )


class _Rows:
    """The rows of `collectives` as arrays, sorted by operation, then by arrival.

    ``starts`` is where each operation begins, ``size`` its rows, ``of`` the operation of
    each row; ``lowest`` is the row of `collectives` that stands for an operation: its
    lowest rank's, or the send. Arrays named after an operation's property have one entry
    per operation.
    """

    def __init__(self, run: Measures, found: Matched) -> None:
        table, matches = run.collectives, found.matches
        rank, start, duration = (integers(table[c]) for c in ("rank", "start_ns", "duration_ns"))
        end = start + duration
        start = called_ns(table)
        arrival, timed = found.on_run_clock(start, rank)
        number = integers(matches["operation"])
        self.order = np.lexsort((arrival, number))
        self.number, self.starts = np.unique(number[self.order], return_index=True)
        self.size = np.diff(np.append(self.starts, number.size))
        self.of = np.repeat(np.arange(self.starts.size), self.size)
        self.rank, self.arrival = rank[self.order], arrival[self.order]
        self.duration, self.timed = (end - start)[self.order], timed[self.order]
        self.end = found.on_run_clock(end, rank)[0][self.order]
        op = table["op"].astype(object).to_numpy()
        speaker = np.lexsort((rank, op == "recv", number))
        self.lowest = speaker[np.unique(number[speaker], return_index=True)[1]]
        self.from_root = np.isin(op, FROM_ROOT)[self.lowest]
        self.to_root = np.isin(op, TO_ROOT)[self.lowest]
        self.p2p = np.isin(op, POINT_TO_POINT)[self.lowest]
        self.is_root = (integers(table["root"]) == rank)[self.order]
        self.complete = self.size == integers(matches["expected"])[self.lowest]
        self._compare(found.clock)

    def _compare(self, clocks: pd.DataFrame) -> None:
        """When the first and the last arrived, as far as the clocks can tell."""
        at = clocks["rank"].to_numpy().searchsorted(self.rank)
        clock = clocks["clock"].to_numpy()[at]
        one_clock = self.max(clock) == self.min(clock)
        error = self.max(integers(clocks["error_ns"].fillna(0))[at])
        self.gate = TRUST * np.where(one_clock, matching.SAME_HOST_ERROR_NS, error)
        self.comparable = one_clock | self.all(self.timed)
        ends_at = self.starts + self.size - 1
        self.first, self.tau = self.arrival[self.starts], self.arrival[ends_at]
        second = self.arrival[np.maximum(ends_at - 1, self.starts)]
        sure = self.comparable & (self.tau - second > self.gate)
        self.last_rank = np.where(sure, self.rank[ends_at], NULL)
        self.root_arrival = self.max(np.where(self.is_root, self.arrival, NULL))
        self.rooted = self.from_root | self.to_root
        self.has_root = ~self.rooted | (self.root_arrival != NULL)

    def wait(self) -> Int64:
        """Each row's waiting, NULL if unknown."""
        others = self.min(np.where(self.is_root, FOREVER, self.arrival))
        until = np.where(self.from_root, self.root_arrival, self.tau)
        until = np.where(self.to_root, others, until)[self.of]
        waits = np.where(self.is_root, ~self.from_root[self.of], ~self.to_root[self.of])
        # A send that ended before its recv began had nobody to wait for.
        waits &= ~self.p2p[self.of] | (self.end > until)
        known = self.comparable & (self.size > 1) & self.has_root & (self.complete | ~self.to_root)
        wait = np.where(waits & known[self.of], until - self.arrival, 0)
        wait = np.where(wait > self.gate[self.of], np.minimum(wait, self.duration), 0)
        return np.where(known[self.of], wait, NULL)

    def caused(self, wait: Int64) -> Int64:
        """The others' waiting: all of it is for the last to arrive, or for a late root."""
        known = wait != NULL
        total = np.add.reduceat(np.where(known, wait, 0), self.starts) if wait.size else wait
        is_last = ~self.rooted[self.of] & (self.rank == self.last_rank[self.of])
        guilty = is_last | (self.from_root[self.of] & self.is_root)
        return np.where(known, np.where(guilty, total[self.of], 0), NULL)

    def transfer(self) -> tuple[Int64, Bool]:
        """What is left once everybody is there, and whether it is exact."""
        ready = np.maximum(self.arrival, self.root_arrival[self.of])
        time = np.where(self.from_root, self.max(self.end - ready), self.max(self.end) - self.tau)
        exact = self.complete & self.comparable & self.has_root
        return np.where(exact & (time > self.gate), time, self.min(self.duration)), exact

    def beyond_error(self, difference: Int64) -> Int64:
        """Differences of operations' times, 0 where the clocks cannot tell them from it."""
        return np.where(difference > self.gate, difference, 0)

    def max(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The largest of each operation's rows."""
        return np.maximum.reduceat(values, self.starts) if values.size else values

    def min(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The smallest of each operation's rows."""
        return np.minimum.reduceat(values, self.starts) if values.size else values

    def all(self, values: Bool) -> Bool:
        """Whether it holds for all of each operation's rows."""
        return np.logical_and.reduceat(values, self.starts) if values.size else values

    def coded(self, column: pd.Series[Any]) -> Coded:
        """One name per operation, wherever some of its rows has one; the last category's."""
        names = _coded(column)
        return Coded(self.max(names.codes[self.order]), names.names)


def called_ns(table: pd.DataFrame) -> Int64:
    """When each row began; gloo's sends and recvs when they were called.

    These begin in the call, and are only noted when its thread next runs.
    """
    start, launch = integers(table["start_ns"]), integers(table["launch_ns"])
    called = (table["device"].eq("cpu") & table["op"].isin(POINT_TO_POINT)).to_numpy()
    return np.where(called & (launch != NULL), np.minimum(launch, start), start)


def _coded(column: pd.Series[Any]) -> Coded:
    return Coded(column.cat.codes.to_numpy().astype(np.int32), tuple(column.cat.categories))
