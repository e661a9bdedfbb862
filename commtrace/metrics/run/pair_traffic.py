"""What each rank sent to each other, as far as the operations themselves say."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Int64, codes, first_rows, numbered, ranges, sorted_by, sums
from commtrace.comms import POINT_TO_POINT, TO_ROOT
from commtrace.measures import measure
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.message_peers import message_peers
from commtrace.metrics.run.waits import matched
from commtrace.table import Column, Rows, Table

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


class _Traffic(NamedTuple):
    """What went from whom to whom; ``timed_bytes`` of it in ``time_ns``, as is known."""

    source: Int64
    destination: Int64
    size_bytes: Int64
    timed_bytes: Int64
    time_ns: Int64


@measure
def pair_traffic(run: Measures) -> Rows:
    """Bytes and bandwidth by source and destination: PAIR_TRAFFIC."""
    parts = (_messages(run), _rooted(run), _exchanged(run))
    every = _Traffic(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    every = _Traffic(*(column[every.size_bytes != NULL] for column in every))
    pair = numbered(every.source, every.destination)
    first = first_rows(pair)
    size, timed, time = (sums(pair, column, first.size) for column in every[2:])
    return PAIR_TRAFFIC.rows(
        {
            "source": every.source[first],
            "destination": every.destination[first],
            "count": np.bincount(pair, minlength=first.size),
            "bytes": size,
            "gb_s": np.where(time > 0, timed / np.maximum(time, 1), np.nan),
        }
    )


def _messages(run: Measures) -> _Traffic:
    """Every send, and the recvs whose sender has no trace."""
    rows, of = _rows(run, POINT_TO_POINT)
    rank, size = (rows.ints(name) for name in ("rank", "size_bytes"))
    peer = message_peers(run, _which(run, POINT_TO_POINT))
    sends = rows.coded("op").being("send")
    alone = ~np.isin(peer, run.rows("ranks").ints("rank"))
    transfer = matched(run).operations.ints("transfer_ns")[of]
    both = matched(run).operations.flags("exact")[of] & (transfer != NULL)
    mine = (peer != NULL) & (sends | alone)
    every = _Traffic(
        np.where(sends, rank, peer),
        np.where(sends, peer, rank),
        size,
        np.where(both, size, 0),
        np.where(both, transfer, 0),
    )
    return _Traffic(*(column[mine] for column in every))


def _rooted(run: Measures) -> _Traffic:
    """From or to the root, once for each other rank."""
    rows, _ = _rows(run, ("broadcast", "scatter", "reduce", "gather"))
    root = rows.ints("root")
    rows = rows.take((root != NULL) & (root != rows.ints("rank")))
    rank, root, op = rows.ints("rank"), rows.ints("root"), rows.coded("op")
    size = np.where(op.being("scatter"), rows.ints("out_bytes"), rows.ints("size_bytes"))
    size = np.where(op.being("gather"), rows.ints("in_bytes"), size)
    inward = op.where(TO_ROOT.__contains__)
    return _untimed(np.where(inward, rank, root), np.where(inward, root, rank), size)


def _exchanged(run: Measures) -> _Traffic:
    """Of an all_to_all, from each rank that was recorded to each other of its operation."""
    rows, of = _rows(run, ("all_to_all",))
    rank, size, n = (rows.ints(name) for name in ("rank", "in_bytes", "group_size"))
    known = (size != NULL) & (n > 0)
    each = np.where(known, size // np.where(known, n, 1), NULL)
    sender, receiver = _pairs(codes(of))
    others = rank[sender] != rank[receiver]
    sender, receiver = sender[others], receiver[others]
    return _untimed(rank[sender], rank[receiver], each[sender])


def _pairs(number: Int64) -> tuple[Int64, Int64]:
    """Each row with each of the same number."""
    order = sorted_by(number)
    size = np.bincount(number)
    begin = (np.cumsum(size) - size)[number]
    return np.repeat(np.arange(number.size), size[number]), order[ranges(begin, size[number])]


def _untimed(source: Int64, destination: Int64, size_bytes: Int64) -> _Traffic:
    nothing = np.zeros_like(size_bytes)
    return _Traffic(source, destination, size_bytes, nothing, nothing)


def _rows(run: Measures, ops: Collection[str]) -> tuple[Rows, Int64]:
    """The rows of ``collectives`` of these operations; which row of ``operations`` each is of."""
    at = _which(run, ops)
    return run.rows("collectives", at), operation_of(run)[at]


def _which(run: Measures, ops: Collection[str]) -> Int64:
    return np.flatnonzero(run.rows("collectives").coded("op").where(ops.__contains__))
