"""Two sequences of operations, aligned without any identifier.

Operations that look alike are distinguished by when they end: a synchronising collective
ends on all its ranks at once, so the true alignment is the one whose end times differ by
one line, the difference of the two clocks. One with a root does not: its root may be done long
before the others have come. It is where the others around it are.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import Bool, Int64, codes, distinct, nth
from commtrace.matching.clock_line import Line, fit
from commtrace.quantiles import median, medians

__all__ = ["Marks", "clock_line", "nearest_left", "partners"]

Float = npt.NDArray[np.float64]

PLACES = (0.5, 0.25, 0.75, 0.0, 1.0)  # where a vote is tried: a window may have opened late
CHUNK = 16  # operations that vote on every offset there can be
LONG_CHUNK = 512  # operations that vote on the best of them
FINALISTS = 8  # of the offsets that each of them proposes
SEEDS = 3
OFFSETS = 10_000
TIE = 1.25  # votes as close as this are equal
APART = 8  # how much closer than its next of kin a partner must be
SURE = float(np.log(100))
HOUR_NS = 3_600_000_000_000


class Marks(Struct, frozen=True):
    """A sequence: what each operation is like, and when it ended, in this order.

    ``meets`` is where that is about the same time on all ranks.
    """

    signature: Int64
    time: Int64
    meets: Bool

    def some(self, at: Int64 | Bool | slice) -> Marks:
        """Some of them."""
        return Marks(self.signature[at], self.time[at], self.meets[at])

    def less(self, line: Line) -> Marks:
        """The same, with this taken off their clock."""
        return Marks(self.signature, self.time - line(self.time), self.meets)


def partners(a: Marks, b: Marks, line: Line) -> Int64:
    """For each operation of b its partner in a, or -1.

    Partners are alike and each other's nearest in time, once ``line`` is taken off b's
    clock; they never cross. Between two pairs so found, what is left over and alike is
    paired too where both sequences have as much of it: so is all that does not meet.
    """
    in_a, in_b = np.flatnonzero(a.meets), np.flatnonzero(b.meets)
    found = np.full(b.time.size, -1, dtype=np.int64)
    if in_a.size == 0 or in_b.size == 0:
        return found
    partner = _without_crossings(_mutual(a.some(in_a), b.some(in_b).less(line)))
    found[in_b] = np.where(partner >= 0, in_a[partner], -1)
    return _filled(a, b, found)


def nearest_left(a: Marks, b: Marks, line: Line, partner: Int64) -> Int64:
    """The nearest of what does not meet and has no partner: alike, between the same pairs."""
    in_a = np.flatnonzero(~a.meets & ~np.isin(np.arange(a.time.size), partner))
    in_b = np.flatnonzero(~b.meets & (partner < 0))
    found = np.full(b.time.size, -1, dtype=np.int64)
    if in_a.size == 0 or in_b.size == 0:
        return found
    pairs = _without_crossings(partner)
    rows = np.flatnonzero(pairs >= 0)
    left = b.some(in_b).less(line)
    between = np.concatenate((np.searchsorted(pairs[rows], in_a), np.searchsorted(rows, in_b)))
    kind = codes(between, np.concatenate((a.signature[in_a], left.signature)))
    of_a, of_b = kind[: in_a.size], kind[in_a.size :]
    nearest = _without_crossings(
        _mutual(Marks(of_a, a.time[in_a], a.meets[in_a]), Marks(of_b, left.time, left.meets))
    )
    found[in_b] = np.where(nearest >= 0, in_a[nearest], -1)
    return found


def clock_line(a: Marks, b: Marks) -> Line | None:
    """How far b's clock is ahead of a's; None where no alignment is beyond chance."""
    if a.time.size == 0 or b.time.size == 0:
        return None
    gap = _gap(a)
    for place in PLACES:
        middle = int(place * (b.time.size - 1))
        offset = _vote(a, b, middle, gap)
        if offset is not None:
            line = _widened(a, b, offset, int(b.time[middle]))
            if _beyond_chance(a, b, line, gap):
                return line
    return None


def _gap(marks: Marks) -> float:
    """The usual time between operations that look alike, or else between any two."""
    order = np.lexsort((marks.time, marks.signature))
    between = np.diff(marks.time[order])
    alike = between[np.diff(marks.signature[order]) == 0]
    return median(alike if alike.size else np.abs(between)) if between.size else 1.0


def _vote(a: Marks, b: Marks, middle: int, gap: float) -> int | None:
    """The offset at which a stretch of b finds its like in a most closely."""
    few, many = (_chunk(b, middle, size) for size in (CHUNK, LONG_CHUNK))
    step = max(1, min(few.time.size * a.time.size // OFFSETS, few.time.size // SEEDS))
    search = _Search(a)
    finalists = []
    for seed in range(0, few.time.size, step):
        offsets = few.time[seed] - a.time[a.signature == few.signature[seed]]
        closeness = np.abs(search.distances(few, offsets)).clip(max=gap / 2).mean(axis=1)
        finalists.append(offsets[np.argsort(closeness, kind="stable")[:FINALISTS]])
    best = distinct(np.concatenate(finalists))
    if best.size == 0:
        return None
    distances = search.distances(many, best)
    centre = medians(distances, axis=1)
    closeness = np.abs(distances - centre[:, None]).clip(max=gap / 2).mean(axis=1)
    good = np.flatnonzero(closeness <= TIE * closeness.min())
    chosen = good[np.argmin(np.abs(best[good]))]
    return int(best[chosen] + centre[chosen])


def _chunk(marks: Marks, middle: int, size: int) -> Marks:
    first = max(0, min(middle - size // 2, marks.time.size - size))
    return marks.some(slice(first, first + size))


def _widened(a: Marks, b: Marks, offset_ns: int, centre_ns: int) -> Line:
    """The line that holds for all of b, from an offset that holds around one time.

    Each stretch is twice as wide as the last, whose line reaches that far whatever the drift.
    """
    line = Line(offset_ns)
    first = _chunk(b, int(np.searchsorted(b.time, centre_ns)), CHUNK)
    reach = max(1, int(np.ptp(first.time)))
    while True:
        near = np.abs(b.time - centre_ns) <= reach
        part = b.some(near)
        partner = _mutual(a, part.less(line))
        found = partner >= 0
        if found.any():
            line = fit(part.time[found], part.time[found] - a.time[partner[found]])
        if near.all():
            return line
        reach *= 2


def _beyond_chance(a: Marks, b: Marks, line: Line, gap: float) -> bool:
    """Whether unrelated sequences would hardly agree as well.

    Half of the pairs are closer than d, which for unrelated ones has the chance 2d/gap:
    the likelihood ratio must outweigh all offsets that were tried, a hundred times.
    """
    moved = b.time - line(b.time)
    inside = (moved >= a.time[0] - gap) & (moved <= a.time[-1] + gap)
    partner = _mutual(a, b.less(line))
    found = partner >= 0
    if found.sum() < max(3, inside.sum() / 3):
        return False
    middling = max(1.0, median(np.abs(moved[found] - a.time[partner[found]])))
    if middling > gap / APART:
        return False
    chance = 2 * middling / gap
    evidence = found.sum() * 0.5 * (np.log(0.5 / chance) + np.log(0.5 / (1 - chance)))
    return bool(evidence > np.log(a.time.size * b.time.size) + SURE)


def _mutual(a: Marks, b: Marks) -> Int64:
    to_a, to_b = _nearest(a, b), _nearest(b, a)
    back = np.where(to_a >= 0, to_b[to_a], -1)
    return np.where(back == np.arange(b.time.size), to_a, -1)


def _nearest(marks: Marks, wanted: Marks) -> Int64:
    """The mark nearest in time to each wanted one, of those alike; -1 where none is."""
    at, _ = _Search(marks).nearest(wanted.signature, wanted.time)
    return np.where(marks.signature[at] == wanted.signature, at, -1)


class _Search:
    """Marks in the order of what they are like, then of time, as single numbers."""

    def __init__(self, marks: Marks) -> None:
        self.low = int(marks.time.min()) - HOUR_NS
        self.high = int(marks.time.max()) + HOUR_NS
        self.stride = 2 * (self.high - self.low)
        keys = self._keys(marks.signature, marks.time)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]

    def nearest(self, signature: Int64, time: Int64) -> tuple[Int64, Int64]:
        """The nearest mark, and how far before the time it is; far off if none is alike."""
        wanted = self._keys(signature, time)
        right = np.searchsorted(self.keys, wanted).clip(max=self.keys.size - 1)
        left = (right - 1).clip(min=0)
        before, after = wanted - self.keys[left], self.keys[right] - wanted
        nearer = np.abs(before) <= np.abs(after)
        return self.order[np.where(nearer, left, right)], np.where(nearer, before, -after)

    def distances(self, marks: Marks, offsets: Int64) -> Int64:
        """The same for each mark (columns), once each offset (rows) is taken off."""
        return self.nearest(marks.signature, marks.time - offsets[:, None])[1]

    def _keys(self, signature: Int64, time: Int64) -> Int64:
        # An hour out of reach is as far as any time, and keeps the numbers small.
        keys: Int64 = signature * self.stride + time.clip(self.low, self.high) - self.low
        return keys


def _without_crossings(partner: Int64) -> Int64:
    """The most pairs that can be kept without two of them crossing."""
    found = np.flatnonzero(partner >= 0)
    if (np.diff(partner[found]) > 0).all():
        return partner
    kept = np.full(partner.size, -1, dtype=np.int64)
    rows = found[_longest_increasing(partner[found].tolist())]
    kept[rows] = partner[rows]
    return kept


def _longest_increasing(values: list[int]) -> list[int]:
    """The places of a longest increasing subsequence (patience sorting)."""
    tails: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values):
        at = bisect_left(tails, value)
        before.append(last[at - 1] if at else -1)
        tails[at : at + 1] = [value]
        last[at : at + 1] = [place]
    chain = []
    place = last[-1]
    while place >= 0:
        chain.append(place)
        place = before[place]
    return chain[::-1]


def _free(taken: Int64) -> Int64:
    """The numbers between the first and the last of those in order that are none of them."""
    every = np.arange(taken[0], taken[-1])
    return every[~np.isin(every, taken)]


def _filled(a: Marks, b: Marks, partner: Int64) -> Int64:
    """Pair what lies between the same two pairs, if alike and as many on both sides."""
    rows = np.flatnonzero(partner >= 0)
    taken = partner[rows]
    free_a = _free(taken) if rows.size else rows
    free_b = _free(rows) if rows.size else rows
    if free_a.size == 0 or free_b.size == 0:
        return partner
    between = np.concatenate((np.searchsorted(taken, free_a), np.searchsorted(rows, free_b)))
    place = codes(between, np.concatenate((a.signature[free_a], b.signature[free_b])))
    in_a, in_b = place[: free_a.size], place[free_a.size :]
    count_a, count_b = (np.bincount(side, minlength=place.max() + 1) for side in (in_a, in_b))
    even = count_a == count_b
    free_a, in_a = free_a[even[in_a]], in_a[even[in_a]]
    free_b, in_b = free_b[even[in_b]], in_b[even[in_b]]
    partner = partner.copy()
    partner[free_b[np.lexsort((nth(in_b), in_b))]] = free_a[np.lexsort((nth(in_a), in_a))]
    return partner
