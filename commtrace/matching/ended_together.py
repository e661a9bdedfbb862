"""Which ends of messages are each other's, as far as when they end tells it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from commtrace.arrays import NULL, Bool, Int64
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.rank_clocks import RankClock

__all__ = ["nearest", "on_one_clock"]


def on_one_clock(rows: Collectives, clocks: Mapping[int, RankClock]) -> Int64:
    """When each row ended on the lowest rank's clock; NULL where its rank's is unknown."""
    time = np.full(rows.end.size, NULL)
    for rank, reading in clocks.items():
        if reading.line is not None:
            its = rows.rank == rank
            time[its] = rows.end[its] - reading.line(rows.end[its])
    return time


def nearest(a: Int64, b: Int64, time: Int64) -> tuple[Int64, Int64]:
    """Of possible pairs of rows those of the nearest ``time``, then of the rows left, and so on."""
    order = np.argsort(np.abs(time[a] - time[b]), kind="stable")
    a, b = a[order], b[order]
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
