"""Every rank's operations in each group, in the order of their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, in_order
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.rank.phases import launching_threads
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Column, Rows, Table, joined
from commtrace.trace_tables import COLLECTIVES

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SEQUENCES", "sequences"]

_OWN = (
    *("step", "rank", "op", "executed", "dtype", "size_bytes", "in_bytes", "out_bytes"),
    *("group_size", "device", "stream", "root", "launch_ns", "start_ns", "duration_ns"),
)
SEQUENCES = Table(
    "sequences",
    "one row of `collectives` with a group and a size (barriers and others without one if asked "
    "for), in the order of the calls of each rank and communicator",
    (
        *COLLECTIVES.only(_OWN),
        Column("operation", "int64", "The operation's number: equal on all its ranks."),
        Column("communicator", "category", "The process group's identity across ranks."),
        Column("order", "Int64", "When it was called; when it began, if that is unknown.", "ns"),
        Column("thread", "Int64", "The thread that launched its kernel; null if unknown."),
        Column("end_ns", "int64", "When it was done, on the rank's own clock.", "ns"),
        Column("sequence", "int64", "A number for each rank and communicator."),
        Column("edge", "bool", "Whether it is the first or last of its sequence."),
    ),
)


def sequences(run: Measures, *, barriers: bool = False, unsized: bool = False) -> Rows:
    """Every rank's operations in each group, in the order it called them: SEQUENCES.

    Barriers, and what has no known size, only if those are asked for.
    """
    table, found, its = run.rows("collectives"), matched(run).matches, matched(run).operations
    communicator, op = found.coded("communicator"), table.coded("op")
    named = np.argsort(np.argsort(np.asarray(communicator.names, np.str_)))  # by their names
    group = np.append(named, -1)[communicator.codes]
    rank, start, launch = (table.ints(name) for name in ("rank", "start_ns", "launch_ns"))
    called = np.where(launch == NULL, start, launch)
    sized = (table.ints("size_bytes") != NULL) | (unsized & op.known & ~op.being("barrier"))
    sized &= ~op.where(POINT_TO_POINT.__contains__)
    mine = np.flatnonzero((group >= 0) & (sized | (barriers & op.being("barrier"))))
    mine = mine[in_order(rank[mine], group[mine], called[mine], start[mine])]
    first = np.diff(rank[mine], prepend=-1) | np.diff(group[mine], prepend=-1)
    begins = np.append(first != 0, True)
    own, number = run.rows("collectives", mine), found.ints("operation")[mine]
    agreed = own.ints("root") == its.ints("root")[number]
    return own.having(
        SEQUENCES,
        {
            "executed": _or_else(own.coded("executed"), own.coded("op")),
            "operation": number,
            "root": np.where(agreed, own.ints("root"), NULL),
            "communicator": communicator.take(mine),
            "order": called[mine],
            "thread": launching_threads(run).values(mine),
            "end_ns": own.ints("start_ns") + own.ints("duration_ns"),
            "sequence": np.cumsum(begins[:-1]) - 1,
            "edge": begins[:-1] | begins[1:],
        },
    )


def _or_else(first: Coded, second: Coded) -> Coded:
    """Names, and others where they are null."""
    both = joined([first, second])
    codes, others = both.codes[: len(first)], both.codes[len(first) :]
    return Coded(np.where(codes < 0, others, codes), both.names)
