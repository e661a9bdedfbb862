"""The ranks, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int64, codes, first_rows, sums
from commtrace.measures import measure
from commtrace.metrics.run.call_kinds import intervals
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ARRIVALS", "RANKS", "Compared", "arrivals", "compared", "ranks"]

_SUMS = ("last_arrivals", "wait_ns_total", "caused_wait_ns")
_RANK = Column("rank", "int64", "The rank.")
_WAITING = (
    Column("wait_ns_total", "Int64", "Its waiting for others to arrive.", "ns"),
    Column("caused_wait_ns", "Int64", "The others' waiting for it to arrive.", "ns"),
)
RANKS = Table(
    "ranks",
    "one rank; what only a comparison with other ranks shows is null without them",
    (
        _RANK,
        Column("file", "category", "Its trace file."),
        Column("host", "category", "Its host's name; null if unknown."),
        Column("last_arrivals", "Int64", "Operations that it reached last.", "operations"),
        *_WAITING,
    ),
)
ARRIVALS = Table(
    "arrivals",
    "one rank in one process group, among the ranks that it could be compared to there",
    (
        Column("group", "category", "The process group's name; null if unknown."),
        Column("communicator", "category", "The process group's identity across ranks."),
        _RANK,
        Column("operations", "int64", "Operations in which it was compared.", "operations"),
        Column("last_arrivals", "int64", "Of these, those that it reached last.", "operations"),
        Column(
            "expected_last_arrivals",
            "float64",
            "As many as chance would give it: 1 / ranks compared, summed over the operations.",
            "operations",
        ),
        *_WAITING,
    ),
)


class Compared(Struct, frozen=True, eq=False):
    """One entry per operation and rank whose wait is known, and whose fault it was.

    ``at`` is its row of ``collectives``, ``interval`` a number for its kernel: several operations
    can share one. ``culprit`` is the rank that it waited for, NULL for nobody; ``chance`` is
    1 / ranks that were compared.
    """

    at: Int64
    rank: Int64
    wait_ns: Int64
    last: Bool
    interval: Int64
    communicator: Coded
    group: Coded
    culprit: Int64
    chance: Float64

    def once(self, among: Int64) -> Int64:
        """Of some entries the one that waited longest in each kernel: a rank waits once in it."""
        longest_first = among[np.argsort(-self.wait_ns[among], kind="stable")]
        return longest_first[first_rows(codes(self.interval[longest_first]))]


@measure
def ranks(run: Measures) -> Rows:
    """Each rank's file and host, and how it and the others waited, as ``RANKS``."""
    total: dict[int, dict[str, int | None]] = {}
    for row in arrivals(run).dicts():
        its = total.setdefault(row["rank"], dict.fromkeys(_SUMS, 0))
        its |= {name: (its[name] or 0) + (row[name] or 0) for name in _SUMS}
    known = sorted(run.rows("ranks").dicts(), key=_by_file)
    nothing: dict[str, int | None] = dict.fromkeys(_SUMS)
    return RANKS.of_dicts([{**row, **total.get(row["rank"], nothing)} for row in known])


@measure
def arrivals(run: Measures) -> Rows:
    """How often each rank was the last of its group, and who waited for it, as ``ARRIVALS``."""
    each = compared(run)
    rank, wait_ns, communicator, group = each.rank, each.wait_ns, each.communicator, each.group
    once = each.once(np.arange(rank.size))
    # Each rank in each group, and behind them the guilty ones, who have more places than these.
    guilty, blamed = each.culprit[once], rank.size
    place = codes(np.append(communicator.codes, communicator.codes[once]), np.append(rank, guilty))
    place, caused = place[:blamed], place[blamed:]
    first = first_rows(place)
    count = first.size
    named = np.flatnonzero(group.codes >= 0)[::-1]
    name = np.full(count, -1, np.int32)
    name[place[named]] = group.codes[named]
    its = caused < count
    own = np.bincount(place[once], minlength=count) > 0
    waits = sums(place[once], wait_ns[once], count)
    order = np.lexsort((rank[first], communicator.codes[first], communicator.codes[first] < 0))
    return ARRIVALS.rows(
        {
            "group": Coded(name[order], group.names),
            "communicator": Coded(communicator.codes[first][order], communicator.names),
            "rank": rank[first][order],
            "operations": np.bincount(place, minlength=count)[order],
            "last_arrivals": np.bincount(place[each.last], minlength=count)[order],
            "expected_last_arrivals": np.bincount(place, each.chance, count)[order],
            "wait_ns_total": np.where(own, waits, NULL)[order],
            "caused_wait_ns": sums(caused[its], wait_ns[once][its], count)[order],
        }
    )


def compared(run: Measures) -> Compared:
    """The operations that each rank was compared in."""
    found, waits = matched(run), matched(run).waits
    at = np.flatnonzero(waits.ints("wait_ns") != NULL)
    of, rank = operation_of(run)[at], waits.ints("rank")[at]
    # A rank can have two rows of one operation, where it numbered two alike.
    guilty = np.flatnonzero(waits.ints("caused_wait_ns")[at] > 0)[::-1]
    culprit = np.full(len(found.operations), NULL)
    culprit[of[guilty]] = rank[guilty]
    return Compared(
        at,
        rank,
        waits.ints("wait_ns")[at],
        waits.flags("last")[at],
        intervals(run)[at],
        found.matches.coded("communicator").take(at),
        found.operations.coded("group").take(of),
        culprit[of],
        1 / np.bincount(of)[of],
    )


def _by_file(row: dict[str, Any]) -> tuple[int, str]:
    return row["rank"], str(row["file"])
