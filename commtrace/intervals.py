"""Unions, intersections and differences of time intervals.

An interval set is a pair of ``int64`` arrays ``(starts, ends)`` in nanoseconds,
half-open ``[start, end)``. A *merged* set is sorted and disjoint: what ``union``
returns, and what every other function here expects and returns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commtrace.arrays import Bool, Float64, Int64, least, most, sums

__all__ = [
    "NEVER",
    "Intervals",
    "Places",
    "closed",
    "covered",
    "inside",
    "intersect",
    "shaded",
    "subtract",
    "total",
    "union",
    "united",
]

Intervals = tuple[Int64, Int64]
NEVER: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))
_SHADES, _FAINT = 8, 0.1


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Merge any intervals, overlapping or not, into a merged set.

    Touching intervals become one; empty ones vanish.
    """
    first = np.asarray(starts, dtype=np.int64)
    last = np.asarray(ends, dtype=np.int64)
    real = last > first
    first, last = first[real], last[real]
    if first.size == 0:
        return first, last
    if (first[1:] < first[:-1]).any():
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    reach = np.maximum.accumulate(last)
    opens = np.concatenate(([True], first[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return first[opens], reach[closes]


def united(*sets: Intervals) -> Intervals:
    """What any of some sets holds, merged or not, as a merged one."""
    starts, ends = (np.concatenate(times) for times in zip(NEVER, *sets, strict=True))
    return union(starts, ends)


def closed(merged: Intervals, gap_ns: int) -> Intervals:
    """A merged set, and what lies between two of its intervals that is no longer than that."""
    starts, ends = union(merged[0], merged[1] + gap_ns)
    return starts, ends - gap_ns


def total(merged: Intervals) -> int:
    """Length in nanoseconds of a merged set."""
    starts, ends = merged
    return int((ends - starts).sum())


def covered(starts: npt.ArrayLike, ends: npt.ArrayLike, merged: Intervals) -> Int64:
    """For each interval, the nanoseconds of it that a merged set covers."""
    first = np.asarray(starts, dtype=np.int64)
    last = np.asarray(ends, dtype=np.int64)
    inside: Int64 = _covered_before(last, merged) - _covered_before(first, merged)
    return inside.clip(min=0)


def shaded(merged: Intervals, start: int, end: int, pixels: int) -> tuple[Int64, Int64, Float64]:
    """A merged set from start to end, drawn that many pixels wide: runs of pixels of one shade.

    The first pixel of each, the one behind its last, and how opaque it is, 1 at most: the less of a
    pixel's time something ran, the less, in eighths. Where nothing did there is none.
    """
    edges = start + (end - start) * np.arange(pixels + 1) // pixels
    first, last = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    share = covered(first, last, merged) / (last - first)
    shade = np.ceil(_SHADES * share).astype(np.int64)
    begin = np.flatnonzero(np.diff(shade, prepend=-1))
    behind = np.append(begin[1:], pixels)
    drawn = shade[begin] > 0
    opacity: Float64 = _FAINT + (1 - _FAINT) * shade[begin[drawn]] / _SHADES
    return begin[drawn], behind[drawn], opacity


def inside(moments: npt.ArrayLike, merged: Intervals) -> Bool:
    """Which moments lie in a merged set, whose intervals end before their end."""
    times = np.asarray(moments, dtype=np.int64)
    at = np.searchsorted(merged[0], times, side="right")
    ends = np.concatenate(([np.iinfo(np.int64).min], merged[1]))
    within: Bool = times < ends[at]
    return within


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What two merged sets have in common, merged."""
    if a[0].size == 0 or b[0].size == 0:
        return a[0][:0], a[1][:0]
    times = np.concatenate((a[0], b[0], a[1], b[1]))
    change = np.ones(times.size, dtype=np.int64)
    change[a[0].size + b[0].size :] = -1
    order = np.lexsort((change, times))
    times, depth = times[order], np.cumsum(change[order])
    both = np.flatnonzero(depth[:-1] == 2)
    return union(times[both], times[both + 1])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What merged set ``a`` holds and merged set ``b`` does not, merged."""
    if a[0].size == 0 or b[0].size == 0:
        return a
    low = min(int(a[0][0]), int(b[0][0]))
    high = max(int(a[1][-1]), int(b[1][-1]))
    outside_starts = np.concatenate(([low], b[1]))
    outside_ends = np.concatenate((b[0], [high]))
    real = outside_ends > outside_starts
    return intersect(a, (outside_starts[real], outside_ends[real]))


def _covered_before(times: Int64, merged: Intervals) -> Int64:
    starts, ends = merged
    if starts.size == 0:
        return np.zeros(times.shape, dtype=np.int64)
    lengths = np.concatenate(([0], np.cumsum(ends - starts)))
    opened = np.searchsorted(starts, times, side="right")
    last = np.maximum(opened - 1, 0)
    overshoot = np.where(opened > 0, np.maximum(ends[last] - times, 0), 0)
    return np.asarray(lengths[opened] - overshoot, dtype=np.int64)


class Places:
    """Sets of many places, numbered from 0, as one: each place's times behind those before.

    Made of all that ran there, so that none touches another.
    """

    def __init__(self, place: Int64, starts: Int64, ends: Int64) -> None:
        count = int(place.max(initial=-1)) + 1
        first, last = least(place, starts, count), most(place, ends, count)
        self.spans = first, last
        room = last - first + 2
        self._begins = np.cumsum(room) - room
        self._later = self._begins - first

    def union(self, place: Int64, starts: Int64, ends: Int64) -> Intervals:
        """Merge intervals of these places."""
        return union(starts + self._later[place], ends + self._later[place])

    def apart(self, merged: Intervals) -> tuple[Int64, Int64, Int64]:
        """The place of each interval, and its times there."""
        place = np.searchsorted(self._begins, merged[0], side="right") - 1
        return place, merged[0] - self._later[place], merged[1] - self._later[place]

    def covered(self, place: Int64, starts: Int64, ends: Int64, merged: Intervals) -> Int64:
        """For each interval of a place, the nanoseconds of it that a merged set covers."""
        return covered(starts + self._later[place], ends + self._later[place], merged)

    def apart_from_others(self, spans: tuple[Int64, Int64], place: Int64) -> tuple[Int64, Int64]:
        """Spans of places without what of them is in another that begins before in its place."""
        first, last = (times + self._later[place] for times in spans)
        order = np.argsort(first, kind="stable")
        reach = np.maximum.accumulate(last[order])
        first[order[1:]] = np.maximum(first[order[1:]], reach[:-1])
        return first - self._later[place], np.maximum(first, last) - self._later[place]

    def totals(self, merged: Intervals) -> Int64:
        """Length in nanoseconds in each place."""
        place, starts, ends = self.apart(merged)
        return sums(place, ends - starts, self._begins.size)
