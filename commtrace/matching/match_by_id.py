"""Operations that an identifier matches: Comms Id, or the group's sequence number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, codes, distinct, least, most, nth
from commtrace.matching.assignment import COMMS_ID, FLIGHT_RECORDER, SEQUENCE, Found
from commtrace.matching.clock_line import CLOSE_NS, SAME, fit
from commtrace.matching.collective_arrays import Collectives, split

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["keyed"]

JUDGED = 4  # fewer shared numbers than this contradict nothing
CONTRADICTED = 0.25  # the share of a rank's numbers that shows that it counts differently


def keyed(rows: Collectives) -> Found:
    """Each row's operation, as far as an identifier tells it.

    What shares an identifier but is not alike is never one operation. A rank that counts
    differently from its group, so that its numbers stand for other operations, or for ones
    that ended before others began, has no numbers.
    """
    sequenced = rows.seq_key >= 0
    by_id = (rows.comms_id >= 0) & ~rows.p2p
    # A Comms Id is a hash of the group's name: ranks that name a group differently agree on the
    # number alone.
    consistent = sequenced & (~by_id | _of_one(rows.comms_id, rows.seq_key))
    key = np.where(consistent, 2 * rows.seq_key, np.where(by_id, 2 * rows.comms_id + 1, -1))
    number = _numbered(rows, key)
    source = np.where(rows.recorder, FLIGHT_RECORDER, SEQUENCE)
    source = np.where(by_id & _of_one(number, rows.comms_id), COMMS_ID, source)
    doubtful = consistent & (source != COMMS_ID)
    number[_contradicted(rows, number, doubtful)] = -1
    alone = np.bincount(number + 1)[number + 1] == 1
    return Found(number, np.where((number >= 0) & ~alone, source, -1))


def _numbered(rows: Collectives, key: Int64) -> Int64:
    """Coalesced operations share a key: alike ones are distinguished by their order."""
    number = np.full(key.size, -1, dtype=np.int64)
    chosen = np.flatnonzero(key >= 0)
    kind = codes(key[chosen], rows.signature[chosen])
    number[chosen] = codes(kind, nth(codes(kind, rows.rank[chosen])))
    return number


def _of_one(number: Int64, values: Int64) -> Bool:
    """Rows whose number, which may be -1, has one value wherever it occurs."""
    count = int(number.max(initial=-1)) + 2
    one: Bool = (least(number, values, count) == most(number, values, count))[number]
    return one


def _contradicted(rows: Collectives, number: Int64, doubtful: Bool) -> Bool:
    """Rows of ranks whose sequence numbers the rank with most of them contradicts."""
    wrong = np.zeros(number.size, dtype=np.bool_)
    for members in _by_rank(rows, np.flatnonzero(doubtful)):
        first = max(members, key=len)
        for other in members:
            if other is not first and _counts_differently(rows, number, first, other):
                wrong[other] = True
    return wrong


def _by_rank(rows: Collectives, chosen: Int64) -> Iterator[list[Int64]]:
    """For each communicator and backend the rows of each of its ranks."""
    group = codes(rows.communicator[chosen], rows.on_cpu[chosen])
    order = np.lexsort((rows.rank[chosen], group))
    for part in split(chosen[order], group[order]):
        yield split(part, rows.rank[part])


def _counts_differently(rows: Collectives, number: Int64, a: Int64, b: Int64) -> bool:
    key = rows.seq_key[a]
    keys = distinct(key[np.isin(key, rows.seq_key[b])]).size
    if keys < JUDGED:
        return False
    _, in_a, in_b = np.intersect1d(number[a], number[b], return_indices=True)
    shared_keys = distinct(rows.seq_key[a[in_a]]).size
    a, b = a[in_a], b[in_b]
    together = rows.synchronises[a]
    a, b = a[together], b[together]
    offset = rows.end[b] - rows.end[a]
    line = SAME if a.size == 0 or _one_clock(rows, a[0], b[0]) else fit(rows.end[b], offset)
    rest = offset - line(rows.end[b])
    # One was done before the other had come: on no clock is that one operation.
    impossible = (rows.end[b] - rows.start[b] - rest < -CLOSE_NS) | (
        rows.end[a] - rows.start[a] + rest < -CLOSE_NS
    )
    return bool(keys - shared_keys + impossible.sum() > CONTRADICTED * keys)


def _one_clock(rows: Collectives, a: int, b: int) -> bool:
    return rows.clock_of[int(rows.rank[a])] == rows.clock_of[int(rows.rank[b])]
