"""Ways through a graph between the heads of its chains, followed for many edits at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from commtrace.arrays import Int32, Int64, ranges, sorted_by
from commtrace.causal.replay.chain_nodes import ChainNodes
from commtrace.heap import passing

__all__ = ["NOTHING", "Later", "Levels", "Ways"]

Later = tuple[Int32 | Int64, Int64]
"""Places, or ways, that are later, and by how much, in ns; of one that is there twice the sum."""
NOTHING: Later = np.empty(0, np.int64), np.empty(0, np.int64)
_FEW = 20  # ways of a level, all edits together
_BLOCK = 1 << 13  # ways whose levels are followed with the same arrays
_BITS = 4  # of places that are found together: a number for each would be as long as all ways
_NEVER = -(2**62)


class Levels(Struct, frozen=True, eq=False):
    """Of each level the first ``way`` and ``head``, how many ``heads``, and ways to each: ``size``.

    Of each head the first way, of each the second, …. Each level depends on those before it only.
    """

    way: Int64
    head: Int64
    heads: Int64
    size: Int64

    def led_to(self, ways: Int32 | Int64) -> Int64:
        """The heads that some ways lead to."""
        level = np.searchsorted(self.way, ways, side="right") - 1
        return self.head[level] + (ways - self.way[level]) % self.heads[level]


class Ways:
    """From nodes to heads: of each the node's ``place``, of so many ``places``."""

    def __init__(self, place: ChainNodes, levels: Levels, places: int) -> None:
        self.place, self._levels, self._places = place, levels, places

    @cached_property
    def _blocks(self) -> list[list[tuple[slice, int, slice]]]:
        """Of each level its ways, how many lead to each head, and these heads."""
        its = self._levels
        columns = (its.way, its.way + its.heads * its.size, its.size, its.head, its.heads)
        each = zip(*(column.tolist() for column in columns), strict=True)
        levels = [(slice(a, b), size, slice(h, h + m)) for a, b, size, h, m in each]
        return [list(block) for _, block in groupby(levels, lambda it: it[0].start // _BLOCK)]

    def _block(self, way: Int32 | Int64) -> npt.NDArray[np.uint16]:
        """The block of each of some ways' levels."""
        ends = [its[-1][0].stop for its in self._blocks]
        return np.searchsorted(ends, way, side="right").astype(np.uint16)

    @cached_property
    def _head(self) -> Int32:
        """The head that each way leads to."""
        return self._levels.led_to(np.arange(self.place.size)).astype(np.int32)

    @passing
    def _by_place(self) -> tuple[Int32, Int32]:
        """The ways in the order of their places, and how many there are before each few places."""
        before = np.zeros((self._places >> _BITS) + 2, dtype=np.int32)
        place = self.place[:]
        np.cumsum(np.bincount(place >> _BITS, minlength=before.size - 1), out=before[1:])
        return sorted_by(place).astype(np.int32), before

    def to(self, head: int) -> slice:
        """The ways to a head that some lead to, in their order."""
        way, first, heads, size = self._each_level
        level = bisect_right(first, head) - 1
        begin, step = way[level] + head - first[level], heads[level]
        return slice(begin, begin + step * size[level], step)

    @cached_property
    def _each_level(self) -> list[list[int]]:
        """Their numbers for who asks one by one."""
        return [column.tolist() for column in structs.astuple(self._levels)]

    def later(self, places: Later) -> Later:
        """The ways from places, each there once and in order, that are later by so much."""
        order, before = self._by_place
        place, by_ns = places
        few = place >> _BITS
        few = few[np.diff(few, prepend=-1) != 0]
        first = before[few]
        ways = order[ranges(first, before[few + 1] - first)]
        of = self.place[ways]
        at = np.searchsorted(place[:-1], of)
        later = (place[at] == of) & (by_ns[at] != 0)
        return ways[later], by_ns[at[later]]

    def follow(
        self,
        time_ns: Int64,
        behind_ns: Sequence[Int32 | Int64],
        lag_ns: Int32 | Int64,
        later: Sequence[Later],
    ) -> None:
        """Fill the times of the heads led to: heads × edits, with what each edit makes later.

        ``behind_ns`` is how long after its head each place is, in each edit or in all of them,
        and ``lag_ns`` has what ways take.
        """
        edits = len(later)
        if edits * self.place.size < _FEW * self._levels.way.size:
            for edit in range(edits):
                behind = behind_ns[edit % len(behind_ns)]
                after = self._after(behind, lag_ns, slice(self.place.size))
                np.add.at(after, *later[edit])
                time_ns[:, edit] = self._one_by_one(time_ns[:, edit], after)
            return
        way = np.concatenate([ways for ways, _ in later])
        number = np.repeat(np.arange(edits), [ways.size for ways, _ in later])
        block = self._block(way)
        order = np.argsort(block, kind="stable")  # numbers of 16 bits: without comparing them
        at = (way.astype(np.int64) * edits + number)[order]
        by = np.concatenate([by for _, by in later])[order]
        bounds = pairwise(np.cumsum([0, *np.bincount(block, minlength=len(self._blocks))]).tolist())
        for levels, (low, high) in zip(self._blocks, bounds, strict=True):
            begin, end = levels[0][0].start, levels[-1][0].stop
            each = [self._after(behind, lag_ns, slice(begin, end)) for behind in behind_ns]
            after = np.repeat(np.stack(each, axis=1), edits // len(each), axis=1)
            np.add.at(after.reshape(-1), at[low:high] - begin * edits, by[low:high])
            for ways, size, heads in levels:
                come = time_ns.take(self.place.since[ways], axis=0)
                come += after[ways.start - begin : ways.stop - begin]
                np.maximum.reduce(come.reshape(size, -1, edits), axis=0, out=time_ns[heads])

    def _after(self, behind_ns: Int32 | Int64, lag_ns: Int32 | Int64, ways: slice) -> Int64:
        """How long after the head that each of some ways begins with it ends."""
        after: Int64 = np.add(behind_ns[self.place[ways]], lag_ns[ways], dtype=np.int64)
        return after

    def _one_by_one(self, time_ns: Int64, after_ns: Int64) -> list[int]:
        """The same for one edit, without numpy, which takes long over each of many levels."""
        time: list[int] = time_ns.tolist()
        first, last = int(self._head[0]), int(self._head[-1])
        time[first : last + 1] = [_NEVER] * (last + 1 - first)
        each = (column.tolist() for column in (self.place.since, after_ns, self._head))
        for since, after, head in zip(*each, strict=True):
            if (come := time[since] + after) > time[head]:
                time[head] = come
        return time
