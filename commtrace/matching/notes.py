"""What could not be matched, and what contradicts itself, for the notes of an analysis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows
from commtrace.comms import members
from commtrace.diagnosis import Note
from commtrace.matching.collective_arrays import Collectives
from commtrace.table import Rows
from commtrace.units import counted

__all__ = ["unmatched"]

_ELSEWHERE = (
    "the others never called them, began or ended their recording at another time, or lost events"
)
_NAMELESS = "the trace does not show which operation they are"


def unmatched(rows: Collectives, matches: Rows, clocks: Rows) -> tuple[Note, ...]:
    """What matching the ranks of a trace left open.

    ``unmatched-operations``: matched on one rank only, though others of the group were
    recorded; one note per rank, and another for those of which nobody knows what they are.
    ``partial-operations``: matched on some of the group's ranks.
    ``sequence-disagrees``: a number that a group gave to different operations.
    ``clock-disagrees``: ranks of one host that cannot have one clock.
    """
    if len(clocks) < 2:
        return ()
    operation, present = matches.ints("operation"), matches.ints("present")
    expected = rows.expected
    return (
        *_alone(rows, (present == 1) & (_could_meet(rows) > 1)),
        *_partial(operation, (present > 1) & (present < expected) & (expected != NULL)),
        *_misnumbered(rows, operation, present),
        *_clocks(rows, clocks),
    )


def _could_meet(rows: Collectives) -> Int64:
    """How many ranks that took part in each row's operation were recorded."""
    recorded = set(rows.clock_of)
    counts = [len(recorded.intersection(members(name)) or recorded) for name in rows.communicators]
    of_group = np.asarray([*counts, len(recorded)])[rows.communicator]
    peer = np.isin(rows.peer, list(recorded))
    could = np.where(rows.p2p, 1 + peer, of_group)
    has_expected = rows.expected != NULL
    return np.where(
        has_expected, np.minimum(could, np.where(has_expected, rows.expected, 0)), could
    )


def _alone(rows: Collectives, alone: Bool) -> Iterator[Note]:
    for rank in distinct(rows.rank[alone]).tolist():
        mine = rows.rank == rank
        for count, why in (
            ((alone & mine & rows.known).sum(), _ELSEWHERE),
            ((alone & mine & ~rows.known).sum(), _NAMELESS),
        ):
            if count:
                yield Note(
                    "unmatched-operations",
                    f"{count:,} of rank {rank}'s {counted(int(mine.sum()), 'operation')} had no "
                    f"match on another rank of their group: {why}",
                    rank=rank,
                )


def _partial(operation: Int64, partial: Bool) -> Iterator[Note]:
    count = distinct(operation[partial]).size
    if count:
        yield Note(
            "partial-operations",
            f"{count:,} of {counted(distinct(operation).size, 'operation')} had a match on "
            "some of their ranks only: their waits are lower bounds, their transfer times upper "
            "bounds",
        )


def _misnumbered(rows: Collectives, operation: Int64, present: Int64) -> Iterator[Note]:
    """Operations with fewer ranks than used their number, or with several numbers."""
    numbered = np.flatnonzero(rows.seq_key >= 0)
    key = rows.seq_key[numbered]
    number = codes(operation[numbered])
    users = np.bincount(key[first_rows(codes(key, rows.rank[numbered]))])
    keys = np.bincount(number[first_rows(codes(number, key))])
    wrong = numbered[(present[numbered] < users[key]) | (keys[number] > 1)]
    for communicator in distinct(rows.communicator[wrong]).tolist():
        mine = wrong[rows.communicator[wrong] == communicator]
        ranks = ", ".join(map(str, distinct(rows.rank[mine]).tolist()))
        yield Note(
            "sequence-disagrees",
            f"{counted(distinct(rows.seq_key[mine]).size, 'sequence number')} of the group of "
            f"ranks {rows.communicators[communicator]} named different operations on ranks "
            f"{ranks}: the ranks are out of step, or their traces count differently",
        )


def _clocks(rows: Collectives, clocks: Rows) -> Iterator[Note]:
    read = dict(zip(clocks.ints("rank").tolist(), clocks.ints("clock").tolist(), strict=True))
    for rank, clock in read.items():
        host = rows.clock_of[rank]
        if clock != read[host]:
            yield Note(
                "clock-disagrees",
                f"rank {rank} leaves operations before rank {host} arrives at them, or always at "
                "another time, though both name one host: their clocks are compared like those of "
                "two hosts",
                rank=rank,
            )
