"""When operations ended on each rank, or on each clock: what clocks can be compared by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int64, ranges
from commtrace.matching.collective_arrays import Collectives, split

__all__ = ["Ends", "InCommon", "by_clock", "common", "ends_of"]


class Ends(NamedTuple):
    """When operations, ascending, began and ended on a rank or clock."""

    number: Int64
    start: Int64
    end: Int64
    on_cpu: Bool


def ends_of(rows: Collectives, number: Int64, which: Bool) -> dict[int, Ends]:
    """What each rank saw of those operations that it has in common with others."""
    telling = np.flatnonzero(which & (number >= 0))
    count = np.bincount(number[telling], minlength=1)
    telling = telling[count[number[telling]] > 1]
    telling = telling[np.lexsort((number[telling], rows.rank[telling]))]
    return {
        int(rows.rank[at[0]]): Ends(number[at], rows.start[at], rows.end[at], rows.on_cpu[at])
        for at in split(telling, rows.rank[telling])
    }


def by_clock(ends: dict[int, Ends], clock_of: dict[int, int]) -> dict[int, Ends]:
    """When each clock saw operations end: the median over its ranks."""
    members: dict[int, list[Ends]] = {}
    for rank, seen in ends.items():
        members.setdefault(clock_of[rank], []).append(seen)
    return {one: _middling(seen) for one, seen in members.items()}


def _middling(seen: list[Ends]) -> Ends:
    columns = (np.concatenate(column) for column in zip(*seen, strict=True))
    number, start, end, on_cpu = columns
    order = np.lexsort((end, number))
    number, start, end, on_cpu = number[order], start[order], end[order], on_cpu[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    size = np.diff(np.append(first, number.size))
    low, high = end[first + (size - 1) // 2], end[first + size // 2]
    starts, ends = np.maximum.reduceat(start, first), low + (high - low) // 2
    return Ends(number[first], starts, ends, on_cpu[first])


class InCommon:
    """How many operations each clock saw in common with others."""

    def __init__(self, ends: Mapping[int, Ends]) -> None:
        self._ends, self._clocks = ends, sorted(ends)
        numbers = [ends[clock].number for clock in self._clocks]
        none = np.empty(0, np.int64)
        code = np.concatenate([none, *(np.full(n.size, code) for code, n in enumerate(numbers))])
        number = np.concatenate([none, *numbers])
        order = np.argsort(number, kind="stable")
        self._code = code[order]
        self._first = np.searchsorted(number[order], np.arange(number.max(initial=-1) + 2))

    def clocks(self, near: int, fewest: int) -> list[int]:
        """The clocks that saw so many of what one saw, ascending, itself among them."""
        if near not in self._ends:
            return []
        seen = self._ends[near].number
        first = self._first[seen]
        also = self._code[ranges(first, self._first[seen + 1] - first)]
        enough = np.flatnonzero(np.bincount(also) >= fewest)
        return [self._clocks[code] for code in enough.tolist()]


def common(a: Ends, b: Ends) -> tuple[Int64, Int64]:
    """Where the operations that both saw are in each."""
    _, in_a, in_b = np.intersect1d(a.number, b.number, assume_unique=True, return_indices=True)
    return in_a, in_b
