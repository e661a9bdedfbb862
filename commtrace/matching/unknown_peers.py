"""Whose send or recv it is, where a rank's own trace does not tell.

PyTorch names a peer by its rank in the group, and on CPUs not the group: of a rank that is in
several, it may be one of several peers. Then it is the one whose own calls lack as many ends. What
names its group, but not the peer, is for the other where that has two ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from commtrace.arrays import NULL, Int64, grouped
from commtrace.comms import members
from commtrace.matching.collective_arrays import Collectives

__all__ = ["with_peers"]


class _Ends(NamedTuple):
    """Rows of one rank that send, or receive, alike, and do not tell to or from whom."""

    rank: int
    sends: bool
    signature: int
    rows: Int64


class _Lack(NamedTuple):
    """A rank that names another oftener than that names it: how many times, and one of its rows."""

    rank: int
    times: int
    row: int


def with_peers(rows: Collectives) -> Collectives:
    """The rows with each peer that only one other rank can be, and with that one's communicator.

    A peer is known where the group has one other rank; from the other end, where that names this
    rank, as often as this rank's calls lack; or from the only other rank whose calls of that kind
    lack theirs, as many.
    """
    rows = _of_pairs(rows)
    unknown = np.flatnonzero(rows.p2p & (rows.peer == NULL))
    if not unknown.size:
        return rows
    peer, communicator = rows.peer.copy(), rows.communicator.copy()
    left: list[_Ends] = []
    missing = _missing(rows)
    for ends in _each(rows, unknown):
        to = missing.get((ends.rank, ends.sends, ends.signature), [])
        if len(to) == 1 and to[0].times == ends.rows.size:
            peer[ends.rows] = to[0].rank
            communicator[ends.rows] = rows.communicator[to[0].row]
        else:
            left.append(ends)
    for mine, other in _only(left):
        peer[mine.rows] = other.rank
    return replace(rows, peer=peer, communicator=communicator)


def _of_pairs(rows: Collectives) -> Collectives:
    """The rows with the peers of messages in groups of two ranks, which only GPUs name."""
    both = np.asarray([_pair(name) for name in rows.communicators], np.int64).reshape(-1, 2)
    named = ~rows.on_cpu & (rows.communicator >= 0)
    unknown = np.flatnonzero(rows.p2p & (rows.peer == NULL) & named)
    of = both[rows.communicator[unknown]]
    rank = rows.rank[unknown]
    mine = (of[:, 0] == rank) | (of[:, 1] == rank)
    if not mine.any():
        return rows
    peer = rows.peer.copy()
    peer[unknown[mine]] = (of.sum(axis=1) - rank)[mine]
    return replace(rows, peer=peer)


def _pair(communicator: str) -> tuple[int, int]:
    """The two ranks of a group; none where it has more, or fewer."""
    ranks = members(communicator)
    return (ranks[0], ranks[1]) if len(ranks) == 2 else (NULL, NULL)


def _each(rows: Collectives, unknown: Int64) -> Iterator[_Ends]:
    keys = (rows.rank[unknown], rows.sends[unknown], rows.signature[unknown])
    for at in grouped(*keys):
        mine = unknown[at]
        first = int(mine[0])
        its = int(rows.rank[first]), bool(rows.sends[first]), int(rows.signature[first])
        yield _Ends(*its, mine)


def _missing(rows: Collectives) -> dict[tuple[int, bool, int], list[_Lack]]:
    """For a rank, and whether it sends what, who else names it oftener than it names these."""
    known = np.flatnonzero(rows.p2p & (rows.peer != NULL))
    columns = (rows.rank, rows.peer, rows.sends, rows.signature)
    each = list(zip(*(its[known].tolist() for its in columns), strict=True))
    count, one = Counter(each), dict(zip(each, known.tolist(), strict=True))
    found: dict[tuple[int, bool, int], list[_Lack]] = {}
    for (rank, peer, sends, signature), number in count.items():
        lacks = number - count[peer, rank, not sends, signature]
        if lacks > 0:
            row = one[rank, peer, sends, signature]
            found.setdefault((peer, not sends, signature), []).append(_Lack(rank, lacks, row))
    return found


def _only(left: list[_Ends]) -> Iterator[tuple[_Ends, _Ends]]:
    """Ends of one kind that only two ranks have, and as often: both ways."""
    for signature in {ends.signature for ends in left}:
        alike = [ends for ends in left if ends.signature == signature]
        if len({ends.rank for ends in alike}) != 2:
            continue
        for one in alike:
            for other in alike:
                fits = one.rank != other.rank and one.sends != other.sends
                if fits and one.rows.size == other.rows.size:
                    yield one, other
