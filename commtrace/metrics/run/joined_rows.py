"""The rows of ``collectives`` with what matching found of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from commtrace.arrays import NULL, Bool, Int64, among, in_order, most
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.run.message_peers import message_peers
from commtrace.metrics.run.waits import OPERATIONS, WAITS, matched
from commtrace.table import Column, Rows, Table
from commtrace.trace_tables import COLLECTIVES

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "JOINED_ROWS",
    "joined_messages",
    "joined_rows",
    "operation_of",
    "paired",
    "rows_of_operations",
    "several_ranks",
    "steps_of_operations",
]

_OWN = ("op", "device", "stream", "step", "start_ns", "duration_ns", "launch_ns", "peer")
_OF_OPERATION = (
    *("operation", "communicator", "present", "last_rank", "last_arrival_ns"),
    *("root", "skew_ns", "size_bytes"),
)
_KNOWN = ("arrival_ns", "end_ns", "wait_ns")

JOINED_ROWS = Table(
    "joined_rows",
    "one row of `collectives` with a known time and its operation, by rank and arrival",
    (
        *(
            structs.replace(its, dtype="int64") if its.name in _KNOWN else its
            for its in WAITS.columns
        ),
        *COLLECTIVES.only(_OWN),
        *OPERATIONS.only(_OF_OPERATION[1:]),
        Column("pair", "int64", "A number for the two ranks of a send or recv; else -1."),
    ),
)


def several_ranks(run: Measures) -> None:
    """Raises CannotLook where there is nobody to compare with."""
    if len(run.rows("ranks")) < 2:
        raise CannotLook("needs several ranks: in one, waiting is not separable from transfer")


def joined_rows(run: Measures, which: Bool | None = None) -> Rows:
    """The rows of ``collectives`` with their waits and operations: JOINED_ROWS.

    ``which`` is a flag for each row, for only these: made anew each time, all take much memory.
    Times are on the run's clock, but for ``start_ns``. CannotLook for one rank.
    """
    several_ranks(run)
    timed = matched(run).waits.ints("arrival_ns") != NULL
    mine = np.flatnonzero(timed if which is None else timed & which)
    return _joined(run, mine) if mine.size else _none(run)


@measure
def _none(run: Measures) -> Rows:
    return _joined(run, np.empty(0, dtype=np.int64))


def _joined(run: Measures, mine: Int64) -> Rows:
    found = matched(run)
    number, arrival, rank = (found.waits.ints(c) for c in ("operation", "arrival_ns", "rank"))
    mine = mine[in_order(rank[mine], arrival[mine], number[mine])]
    waits, own = found.waits.some(mine), run.rows("collectives", mine)
    its = found.operations.take(operation_of(run)[mine])
    launch, wait = own.ints("launch_ns"), waits.ints("wait_ns")
    late, peer = waits.ints("arrival_ns") - own.ints("start_ns"), message_peers(run, mine)
    return JOINED_ROWS.rows(
        {
            **{one.name: waits.columns[one.name] for one in WAITS.columns},
            **{name: own.columns[name] for name in _OWN},
            **{name: its.columns[name] for name in _OF_OPERATION[1:]},
            "launch_ns": np.where(launch == NULL, NULL, launch + late),
            "wait_ns": np.where(wait == NULL, 0, wait),
            "peer": peer,
            "pair": _pair(rank[mine], peer),
        }
    )


def operation_of(run: Measures) -> Int64:
    """The row of ``operations`` that each row of ``collectives`` is of: these are numbered."""
    return matched(run).waits.ints("operation")


def steps_of_operations(run: Measures) -> Int64:
    """The step of each operation, the last of its ranks'; NULL of none."""
    number = operation_of(run)
    return most(number, run.rows("collectives").ints("step"), int(number.max(initial=-1)) + 1)


def rows_of_operations(run: Measures, operations: Rows) -> Int64:
    """The rows of ``collectives`` that are of some operations."""
    return np.flatnonzero(among(operation_of(run), operations.ints("operation")))


def joined_messages(run: Measures) -> Rows:
    """Those of sends and recvs."""
    return joined_rows(run, run.rows("collectives").coded("op").where(POINT_TO_POINT.__contains__))


def paired(run: Measures) -> None:
    """Raises CannotLook where there are messages, but none with both of its sides."""
    rows = joined_messages(run)
    if len(rows) and not (rows.ints("present") > 1).any():
        raise CannotLook(
            "needs messages of which both sides are known: none is; on CPUs "
            "record_shapes=True tells peers"
        )


def _pair(rank: Int64, peer: Int64) -> Int64:
    """A number for the two ranks of a send or recv; -1 for other operations."""
    low, high = np.minimum(rank, peer), np.maximum(rank, peer)
    return np.where(peer == NULL, -1, low * 2**31 + high)
