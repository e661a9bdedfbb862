"""The ranks, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.schema import Column, Table, rows

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.trace import Trace

__all__ = ["RANKS", "ranks"]

RANKS = Table(
    "ranks",
    "one rank",
    (
        Column("rank", "int64", "The rank."),
        Column("file", "category", "Its trace file."),
        Column("host", "category", "Its host's name; null where the trace does not tell."),
        Column("last_arrivals", "Int64", "Operations that it reached last.", "operations"),
        Column("wait_ns_total", "Int64", "Its waiting for others to arrive.", "ns"),
        Column("caused_wait_ns", "Int64", "The others' waiting for it to arrive.", "ns"),
    ),
)


def ranks(trace: Trace) -> pd.DataFrame:
    """Each rank's file and host, as ``RANKS``; what needs ranks matched is null."""
    known = rows(trace.ranks[["rank", "file", "host"]])
    unmatched = dict.fromkeys(("last_arrivals", "wait_ns_total", "caused_wait_ns"))
    return RANKS.from_rows([{**row, **unmatched} for row in known])
