"""To whom messages of GPUs go where no trace names a peer: as far as when they end tells it.

So are those of ``batch_isend_irecv``, as pipelines use it, in traces of PyTorch before 2026: the
kernels have no metadata, and what their calls tell does not hold the peer. A send and its recv are
done at about the same time, and stages pass on to their neighbours in the group. Where all ranks
send and receive in one kernel, that is done when both are: two ranks that swap are done together,
and no others with them; else they hand on around a ring, all the same way. Which way is not known,
and makes no difference to who waits for whom: both neighbours do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from commtrace.arrays import NULL, Int64, distinct, ranges
from commtrace.comms import members
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.ended_together import nearest, on_one_clock
from commtrace.matching.rank_clocks import RankClock
from commtrace.matching.sequence import MARGIN_NS

__all__ = ["with_neighbours"]

_MOST = 0.9
"""Of a group's messages have to find a partner: else they do not go to neighbours alone."""
_HARDLY = 0.5
"""Of a ring's kernels are done together with those of one other rank alone, as of a slow link's."""

_Pairs = tuple[Int64, Int64]
"""Rows of sends, and of the recv of each."""


def with_neighbours(rows: Collectives, clocks: Mapping[int, RankClock]) -> Collectives:
    """The rows with the peers of GPUs' messages that nothing names, where their ends tell them.

    On ``clocks``, which other operations tell. No row of a group whose ranks are not listed, or
    whose messages hardly all find a partner.
    """
    unnamed = rows.p2p & (rows.peer == NULL) & ~rows.on_cpu & (rows.communicator >= 0)
    if not unnamed.any():
        return rows
    peer, time = rows.peer.copy(), on_one_clock(rows, clocks)
    for communicator in distinct(rows.communicator[unnamed]).tolist():
        ranks = np.asarray(members(rows.communicators[communicator]), dtype=np.int64)
        at = np.flatnonzero(unnamed & (rows.communicator == communicator) & (time != NULL))
        if at.size and ranks.size and np.isin(rows.rank[at], ranks).all():
            sends, recvs = _partners(rows, at, time, ranks)
            peer[sends], peer[recvs] = rows.rank[recvs], rows.rank[sends]
    return replace(rows, peer=peer)


def _partners(rows: Collectives, at: Int64, time: Int64, ranks: Int64) -> _Pairs:
    """The sends and recvs of a group that are each other's."""
    order = np.argsort(ranks)
    place = order[np.searchsorted(ranks[order], rows.rank[at])]
    kernels = _in_both_ways(rows, at, place, ranks.size)
    if kernels is not None:
        return _swapped_or_around(rows, *kernels, time, ranks.size)
    sends, recvs = _ended_together(rows, at, time, place, ranks.size)
    there = np.isin(np.arange(ranks.size), place)
    inside = (np.roll(there, 1) & np.roll(there, -1))[place]
    found = np.isin(at, np.append(sends, recvs))
    enough = found[inside].sum() >= _MOST * inside.sum()
    return (sends, recvs) if enough else (at[:0], at[:0])


def _in_both_ways(rows: Collectives, at: Int64, place: Int64, size: int) -> _Pairs | None:
    """The send and the recv of each kernel, by place and time; None unless all have one of each.

    And all ranks of the group have as many.
    """
    in_order = at[np.lexsort((rows.sends[at], rows.start[at], place))]
    out = rows.sends[in_order]
    sends, recvs = in_order[out], in_order[~out]
    counts = np.bincount(place, minlength=size)
    if sends.size != recvs.size or (counts != counts[0]).any():
        return None
    same = (rows.rank[sends] == rows.rank[recvs]) & (rows.start[sends] == rows.start[recvs])
    return (sends, recvs) if same.all() else None


def _swapped_or_around(
    rows: Collectives, sends: Int64, recvs: Int64, time: Int64, size: int
) -> _Pairs:
    """Of kernels that send and receive: those that end with one other rank's alone swap with that.

    If nearly all do. If hardly any does, each rank sends to the next.
    """
    end = time[sends]
    order = np.argsort(end, kind="stable")
    first = np.searchsorted(end[order], end - MARGIN_NS)
    near = np.searchsorted(end[order], end + MARGIN_NS, side="right") - first
    turn = np.empty_like(order)
    turn[order] = np.arange(order.size)
    other = order[np.where(near == 2, 2 * first + 1 - turn, turn)]  # of two the one that is not it
    paired = (near == 2) & (near[other] == 2) & (rows.rank[sends] != rows.rank[sends[other]])
    if paired.sum() >= _MOST * paired.size:
        a, b = sends[paired], recvs[other[paired]]
    elif paired.sum() <= _HARDLY * paired.size:
        a, b = sends, np.roll(recvs.reshape(size, -1), -1, axis=0).ravel()
    else:
        return sends[:0], recvs[:0]
    begin = time - (rows.end - rows.start)
    possible = (begin[a] <= time[b] + MARGIN_NS) & (begin[b] <= time[a] + MARGIN_NS)
    possible &= rows.signature[a] == rows.signature[b]
    return (a, b) if possible.all() else (a[:0], b[:0])


def _ended_together(rows: Collectives, at: Int64, time: Int64, place: Int64, size: int) -> _Pairs:
    """Sends and recvs of neighbours that are each other's nearest, then of those left, ..."""
    out = rows.sends[at]
    sends, recvs = np.flatnonzero(out), np.flatnonzero(~out)
    since, span = int(time[at].min()), int(np.ptp(time[at])) + 2 * MARGIN_NS + 1
    when = time[at] - since + MARGIN_NS
    recvs = recvs[np.argsort(place[recvs] * span + when[recvs], kind="stable")]
    ends = place[recvs] * span + when[recvs]
    pairs = []
    for step in distinct([1 % size, -1 % size]).tolist():
        wanted = (place[sends] + step) % size * span + when[sends]
        first = np.searchsorted(ends, wanted - MARGIN_NS)
        count = np.searchsorted(ends, wanted + MARGIN_NS, side="right") - first
        pairs.append((np.repeat(sends, count), recvs[ranges(first, count)]))
    a, b = (at[np.concatenate(its)] for its in zip(*pairs, strict=True))
    fits = (rows.signature[a] == rows.signature[b]) & (rows.rank[a] != rows.rank[b])
    return nearest(a[fits], b[fits], time)
