"""To whom messages of GPUs go where no trace names a peer: to the neighbour that they end with.

So are those of ``batch_isend_irecv``, as pipelines use it, in traces of PyTorch before 2026: the
kernels have no metadata, and what their calls tell does not hold the peer. A send and its recv are
done at about the same time, and stages pass on to their neighbours in the group. Where all ranks
send and receive in one kernel, that is done when both are; then they hand on around a ring, all the
same way. Which way is not known, and makes no difference to who waits for whom: both neighbours do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from commtrace.arrays import NULL, Bool, Int64, distinct, ranges
from commtrace.comms import members
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.rank_clocks import RankClock
from commtrace.matching.sequence import MARGIN_NS

__all__ = ["with_neighbours"]

_MOST = 0.9
"""Of a group's messages have to find a partner: else they do not go to neighbours alone."""


def with_neighbours(rows: Collectives, clocks: Mapping[int, RankClock]) -> Collectives:
    """The rows with the peers of GPUs' messages that nothing names.

    Each is the neighbour in the order of the group's ranks whose message ended closest to it in
    time, on ``clocks``, which other operations tell; or the one around the ring. No row of a group
    whose messages hardly all find one.
    """
    unnamed = rows.p2p & (rows.peer == NULL) & ~rows.on_cpu & (rows.communicator >= 0)
    if not unnamed.any():
        return rows
    peer, time = rows.peer.copy(), _on_one_clock(rows, clocks)
    for communicator in distinct(rows.communicator[unnamed]).tolist():
        at = np.flatnonzero(unnamed & (rows.communicator == communicator) & (time != NULL))
        place = _places(rows.rank[at], members(rows.communicators[communicator]))
        sends, recvs = _ended_together(rows, at, time, place)
        if 2 * sends.size < _MOST * at.size:
            sends, recvs = _around(rows, at, place, len(members(rows.communicators[communicator])))
        peer[sends], peer[recvs] = rows.rank[recvs], rows.rank[sends]
    return replace(rows, peer=peer)


def _around(rows: Collectives, at: Int64, place: Int64, size: int) -> tuple[Int64, Int64]:
    """Each send with the next rank's recv of its number, if all have one of each in each kernel."""
    in_order = np.lexsort((rows.sends[at], rows.start[at], place))
    its, out = at[in_order], rows.sends[at[in_order]]
    sends, recvs = its[out], its[~out]
    counts = np.bincount(place, minlength=size)
    shared = sends.size == recvs.size and (counts == counts[0]).all()
    shared = shared and (rows.rank[sends] == rows.rank[recvs]).all()
    if not (shared and (rows.start[sends] == rows.start[recvs]).all()):
        return at[:0], at[:0]
    of_next = np.roll(recvs.reshape(size, -1), -1, axis=0).ravel()
    alike = (rows.signature[sends] == rows.signature[of_next]).all()
    return (sends, of_next) if alike else (at[:0], at[:0])


def _on_one_clock(rows: Collectives, clocks: Mapping[int, RankClock]) -> Int64:
    """When each row ended on the lowest rank's clock; NULL where its rank's is unknown."""
    time = np.full(rows.end.size, NULL)
    for rank, reading in clocks.items():
        if reading.line is not None:
            its = rows.rank == rank
            time[its] = rows.end[its] - reading.line(rows.end[its])
    return time


def _places(rank: Int64, ranks: tuple[int, ...]) -> Int64:
    """Each row's place in its group."""
    order = np.argsort(ranks)
    found: Int64 = order[np.searchsorted(np.asarray(ranks)[order], rank)]
    return found


def _ended_together(rows: Collectives, at: Int64, time: Int64, place: Int64) -> tuple[Int64, Int64]:
    """Sends and recvs of neighbours that are each other's nearest, then of those left, ..."""
    out, last = rows.sends[at], int(place.max(initial=0))
    sends, recvs = np.flatnonzero(out), np.flatnonzero(~out)
    recvs = recvs[np.argsort(time[at[recvs]], kind="stable")]
    ends, wanted = time[at[recvs]], time[at[sends]]
    first = np.searchsorted(ends, wanted - MARGIN_NS)
    count = np.searchsorted(ends, wanted + MARGIN_NS, side="right") - first
    a, b = np.repeat(sends, count), recvs[ranges(first, count)]
    apart = np.abs(place[a] - place[b])
    alike = rows.signature[at[a]] == rows.signature[at[b]]
    fits = alike & ((apart == 1) | ((apart == last) & (last > 1)))
    a, b = at[a[fits]], at[b[fits]]
    order = np.argsort(np.abs(time[a] - time[b]), kind="stable")
    return _nearest_first(a[order], b[order])


def _nearest_first(a: Int64, b: Int64) -> tuple[Int64, Int64]:
    """Of pairs in the order of their nearness those that leave no nearer one out."""
    pairs = [(a[:0], b[:0])]
    taken = np.zeros(1 + max(a.max(initial=0), b.max(initial=0)), np.bool_)
    while a.size:
        best = _first(a, taken.size) & _first(b, taken.size)
        pairs.append((a[best], b[best]))
        taken[a[best]] = taken[b[best]] = True
        left = ~(taken[a] | taken[b])
        a, b = a[left], b[left]
    one, other = zip(*pairs, strict=True)
    return np.concatenate(one), np.concatenate(other)


def _first(values: Int64, count: int) -> Bool:
    """Where each of values below a count stands for the first time."""
    at = np.arange(values.size)
    first = np.empty(count, np.int64)
    first[values[::-1]] = at[::-1]
    is_first: Bool = first[values] == at
    return is_first
