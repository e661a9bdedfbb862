"""The ranks, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, codes, first_rows, integers, sums
from commtrace.measures import measure
from commtrace.metrics.run.arrivals import coded
from commtrace.metrics.run.collectives import INTERVAL
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Column, Table, rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ARRIVALS", "RANKS", "arrivals", "compared", "ranks"]

_NOBODY = -1
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


@measure
def ranks(run: Measures) -> pd.DataFrame:
    """Each rank's file and host, and how it and the others waited, as ``RANKS``."""
    total: dict[int, dict[str, int | None]] = {}
    for row in rows(arrivals(run)):
        its = total.setdefault(row["rank"], dict.fromkeys(_SUMS, 0))
        its |= {name: (its[name] or 0) + (row[name] or 0) for name in _SUMS}
    known = sorted(rows(run.ranks[["rank", "file", "host"]]), key=_by_file)
    nothing: dict[str, int | None] = dict.fromkeys(_SUMS)
    return RANKS.from_rows([{**row, **total.get(row["rank"], nothing)} for row in known])


@measure
def arrivals(run: Measures) -> pd.DataFrame:
    """How often each rank was the last of its group, and who waited for it, as ``ARRIVALS``."""
    each = compared(run)
    rank, wait_ns = integers(each["rank"]), integers(each["wait_ns"])
    communicator, group = (coded(each[name]) for name in ("communicator", "group"))
    # A rank waits once in a kernel, however many operations share it.
    longest_first = np.argsort(-wait_ns, kind="stable")
    kernel = codes(*(each[name] for name in INTERVAL))[longest_first]
    once = longest_first[first_rows(kernel)]
    # Each rank in each group, and behind them the guilty ones, who have more places than these.
    guilty, blamed = each["culprit"].to_numpy(np.int64, na_value=_NOBODY)[once], rank.size
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
    return ARRIVALS.frame(
        {
            "group": Coded(name[order], group.names),
            "communicator": Coded(communicator.codes[first][order], communicator.names),
            "rank": rank[first][order],
            "operations": np.bincount(place, minlength=count)[order],
            "last_arrivals": np.bincount(place, each["last"].to_numpy(), count).astype(np.int64)[
                order
            ],
            "expected_last_arrivals": np.bincount(place, each["chance"].to_numpy(), count)[order],
            "wait_ns_total": np.where(own, waits, NULL)[order],
            "caused_wait_ns": sums(caused[its], wait_ns[once][its], count)[order],
        }
    )


def compared(run: Measures) -> pd.DataFrame:
    """One row per operation and rank whose wait is known, and whose fault it was."""
    found, table = matched(run), run.collective_columns
    at = np.flatnonzero(found.waits["wait_ns"].notna())
    # Of many rows: no column is copied.
    columns: dict[str, Any] = {
        **{name: found.waits[name].array[at] for name in ("rank", "wait_ns", "last")},
        **{name: table[name].array[at] for name in INTERVAL[1:]},
        "communicator": found.matches["communicator"].array[at],
    }
    # A rank can have two rows of one operation, where it numbered two alike.
    guilty = np.flatnonzero(integers(found.waits["caused_wait_ns"])[at] > 0)[::-1]
    of, rank = operation_of(run)[at], np.asarray(columns["rank"])
    culprit = np.full(len(found.operations), NULL)
    culprit[of[guilty]] = rank[guilty]
    columns["culprit"] = pd.arrays.IntegerArray(culprit[of], culprit[of] == NULL)
    columns["group"] = found.operations["group"].array[of]
    columns["chance"] = 1 / np.bincount(of)[of]
    return pd.DataFrame(columns, index=at, copy=False)


def _by_file(row: dict[str, Any]) -> tuple[int, str]:
    return row["rank"], str(row["file"])
