"""What each rank sent to each other, as far as the operations themselves say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, Int64, integers
from commtrace.measures import measure
from commtrace.metrics.run.arrivals import TO_ROOT
from commtrace.metrics.run.waits import matched
from commtrace.table import Column, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["PAIR_TRAFFIC", "ROUTED", "pair_traffic"]

ROUTED = ("send", "recv", "broadcast", "scatter", "reduce", "gather", "all_to_all")
"""Operations that say who sends to whom; of others it is up to the algorithm."""

PAIR_TRAFFIC = Table(
    "pair_traffic",
    "what one rank sent to another in messages and operations of known size that say who sends to "
    "whom, whichever way the backend takes",
    (
        Column("source", "int64", "The rank that sends."),
        Column("destination", "int64", "The rank that receives."),
        Column("count", "int64", "Messages, and operations that both took part in.", "operations"),
        Column("bytes", "int64", "Their bytes; an all_to_all is taken as even.", "bytes"),
        Column(
            "gb_s",
            "float64",
            "Bytes over the transfers' time, of messages that were recorded on both sides.",
            "GB/s",
        ),
    ),
)


@measure
def pair_traffic(run: Measures) -> pd.DataFrame:
    """Bytes and bandwidth by source and destination: PAIR_TRAFFIC."""
    parts = [_messages(run), _rooted(run), _exchanged(run)]
    every = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    pairs = every.groupby(["source", "destination"])
    table = pairs.agg(
        count=("bytes", "size"),
        bytes=("bytes", "sum"),
        timed=("timed_bytes", "sum"),
        time=("time_ns", "sum"),
    ).reset_index()
    time = table["time"].to_numpy(np.float64)
    rate = np.divide(table["timed"], time, out=np.full(time.size, np.nan), where=time > 0)
    ints = ("source", "destination", "count", "bytes")
    return PAIR_TRAFFIC.frame(
        {**{name: table[name].to_numpy(np.int64) for name in ints}, "gb_s": rate}
    )


def _messages(run: Measures) -> pd.DataFrame:
    """Every send, and the recvs whose sender has no trace."""
    rows = _rows(run, ("send", "recv"))
    rows = rows[rows["peer"].notna()]
    alone = ~rows["peer"].isin(run.ranks["rank"])
    rows = rows[(rows["op"] == "send") | alone]
    sends = (rows["op"] == "send").to_numpy()
    rank, peer = integers(rows["rank"]), integers(rows["peer"])
    both = rows["exact"].to_numpy(np.bool_) & rows["transfer_ns"].notna().to_numpy()
    size, transfer = integers(rows["size_bytes"]), integers(rows["transfer_ns"])
    return _traffic(
        np.where(sends, rank, peer),
        np.where(sends, peer, rank),
        size,
        np.where(both, size, 0),
        np.where(both, transfer, 0),
    )


def _rooted(run: Measures) -> pd.DataFrame:
    """From or to the root, once for each other rank."""
    rows = _rows(run, ("broadcast", "scatter", "reduce", "gather"))
    rows = rows[rows["root"].notna() & (rows["root"] != rows["rank"])]
    rank, root = integers(rows["rank"]), integers(rows["root"])
    inward = rows["op"].isin(TO_ROOT).to_numpy()
    part = {"scatter": "out_bytes", "gather": "in_bytes"}
    size = integers(rows["size_bytes"])
    for op, column in part.items():
        size = np.where((rows["op"] == op).to_numpy(), integers(rows[column]), size)
    return _traffic(np.where(inward, rank, root), np.where(inward, root, rank), size)


def _exchanged(run: Measures) -> pd.DataFrame:
    """Of an all_to_all, from each rank that was recorded to each other of its operation."""
    rows = _rows(run, ("all_to_all",))
    pairs = rows.merge(rows[["operation", "rank"]], on="operation", suffixes=("", "_to"))
    pairs = pairs[pairs["rank"] != pairs["rank_to"]]
    size, n = integers(pairs["in_bytes"]), integers(pairs["group_size"])
    known = (size != NULL) & (n > 0)
    each = np.where(known, size // np.where(known, n, 1), NULL)
    return _traffic(integers(pairs["rank"]), integers(pairs["rank_to"]), each)


def _rows(run: Measures, ops: tuple[str, ...]) -> pd.DataFrame:
    found = matched(run)
    columns = ["rank", "op", "peer", "root", "size_bytes", "in_bytes", "out_bytes", "group_size"]
    rows = run.collective_columns[columns].assign(operation=found.waits["operation"].array)
    rows = rows[rows["op"].isin(ops)].astype({"op": object})
    times = found.operations[["operation", "transfer_ns", "exact"]]
    joined: pd.DataFrame = rows.merge(times, on="operation")
    return joined


def _traffic(
    source: Int64,
    destination: Int64,
    size: Int64,
    timed: Int64 | None = None,
    time: Int64 | None = None,
) -> pd.DataFrame:
    """A row each of those whose size is known."""
    nothing = np.zeros_like(size)
    every = pd.DataFrame(
        {
            "source": source,
            "destination": destination,
            "bytes": size,
            "timed_bytes": nothing if timed is None else timed,
            "time_ns": nothing if time is None else time,
        }
    )
    sized: pd.DataFrame = every[size != NULL]
    return sized
