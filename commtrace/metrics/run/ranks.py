"""The ranks, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.measures import measure
from commtrace.metrics.run.collectives import INTERVAL
from commtrace.metrics.run.waits import WAITS, matched
from commtrace.table import Column, Table, rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ARRIVALS", "RANKS", "arrivals", "compared", "ranks"]

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
    sums = arrivals(run).groupby("rank")[["last_arrivals", "wait_ns_total", "caused_wait_ns"]]
    known = run.ranks[["rank", "file", "host"]].astype({"file": "str"})
    known = known.sort_values(["rank", "file"], kind="stable")
    return RANKS.from_rows(rows(known.merge(sums.sum(), on="rank", how="left")))


@measure
def arrivals(run: Measures) -> pd.DataFrame:
    """How often each rank was the last of its group, and who waited for it, as ``ARRIVALS``."""
    each = compared(run)
    if each.empty:
        return ARRIVALS.from_rows([])
    place = ["communicator", "rank"]
    by_place = each.groupby(place, observed=True, dropna=False)
    # A rank waits once in a kernel, however many operations share it.
    longest_first = each.sort_values("wait_ns", ascending=False, kind="stable")
    once = longest_first.drop_duplicates(INTERVAL)
    caused = once.groupby(["communicator", "culprit"], observed=True, dropna=False)["wait_ns"]
    table = pd.DataFrame(
        {
            "group": by_place["group"].first(),
            "operations": by_place.size(),
            "last_arrivals": by_place["last"].sum(),
            "expected_last_arrivals": by_place["chance"].sum(),
            "wait_ns_total": once.groupby(place, observed=True, dropna=False)["wait_ns"].sum(),
        }
    ).assign(caused_wait_ns=caused.sum().rename_axis(place))
    nobody_waited = {"caused_wait_ns": 0}
    return ARRIVALS.from_rows(rows(table.fillna(nobody_waited).reset_index().astype(object)))


def compared(run: Measures) -> pd.DataFrame:
    """One row per operation and rank whose wait is known, and whose fault it was."""
    found, table = matched(run), run.collective_columns
    at = np.flatnonzero(found.waits["wait_ns"].notna())
    columns = {
        **{one.name: found.waits[one.name].array[at] for one in WAITS.columns},
        **{name: table[name].array[at] for name in INTERVAL[1:]},
        "communicator": found.matches["communicator"].array[at],
    }
    each = pd.DataFrame(columns, index=at, copy=False)
    # A rank can have two rows of one operation, where it numbered two alike.
    last = each[each["caused_wait_ns"] > 0].drop_duplicates("operation")
    culprit = last.set_index("operation")["rank"]
    group = found.operations.set_index("operation")["group"]
    return each.assign(
        culprit=each["operation"].map(culprit),
        group=each["operation"].map(group),
        chance=1 / each.groupby("operation")["rank"].transform("size"),
    )
