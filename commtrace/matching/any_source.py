"""From whom messages came that a rank received from any source.

A call for such names no peer. On CPUs a send is done at about the time as its recv is: it writes
once the other end has said that it is ready.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from commtrace.arrays import NULL, Int64, distinct, ranges
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.ended_together import nearest, on_one_clock
from commtrace.matching.rank_clocks import RankClock

__all__ = ["with_sources"]

_NEAR = 8  # sends that ended before a recv, and as many after it, of which one may be its own
_MOST = 0.9  # of what a rank received from any source has to find its send: else none is sure


def with_sources(rows: Collectives, clocks: Mapping[int, RankClock]) -> Collectives:
    """The rows with the senders of what CPUs received from any source, as their ends tell them.

    On ``clocks``, which other operations tell. No row of a rank where hardly all find a send.
    """
    unnamed = rows.p2p & ~rows.sends & (rows.peer == NULL) & rows.on_cpu & (rows.communicator >= 0)
    if not unnamed.any():
        return rows
    peer, time = rows.peer.copy(), on_one_clock(rows, clocks)
    known = rows.p2p & (time != NULL)
    for rank in distinct(rows.rank[unnamed]).tolist():
        recvs = np.flatnonzero(known & ~rows.sends & (rows.rank == rank))
        sends = np.flatnonzero(known & rows.sends & (rows.peer == rank))
        from_any = unnamed[recvs].sum()
        a, b = _partners(rows, sends, recvs, time)
        found = unnamed[b]
        if found.sum() >= _MOST * from_any:
            peer[b[found]] = rows.rank[a[found]]
    return replace(rows, peer=peer)


def _partners(rows: Collectives, sends: Int64, recvs: Int64, time: Int64) -> tuple[Int64, Int64]:
    """Sends to a rank and its recvs, also those that name their peer, that end the nearest."""
    sends = sends[np.argsort(time[sends], kind="stable")]
    at = np.searchsorted(time[sends], time[recvs])
    first, last = np.maximum(at - _NEAR, 0), np.minimum(at + _NEAR, sends.size)
    a, b = sends[ranges(first, last - first)], np.repeat(recvs, last - first)
    begin = time - (rows.end - rows.start)
    fits = (rows.signature[a] == rows.signature[b]) & (rows.communicator[a] == rows.communicator[b])
    fits &= (rows.peer[b] == NULL) | (rows.peer[b] == rows.rank[a])
    fits &= begin[a] <= time[b]  # but it may be done before: what is small waits in a buffer
    return nearest(a[fits], b[fits], time)
