"""Where a host thread waited for what it had called: no trace says it, its gaps do.

A thread that waits runs no operator until the operation is done. The end of an operation
lies in some gap between operators by chance, too; a wait's gap is long before it and short
behind it, and lies there for most calls of a kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int32, Int64, codes, most, rows_of_each, sorted_by
from commtrace.causal.rank.moments import Moments
from commtrace.causal.run.calls import Calls

__all__ = ["Gaps", "joins"]

_LIKELY = 0.05  # of a gap where the end would lie by chance
_SHORT_BEHIND = 200  # gaps between a wait and the noted end: what the thread ran meanwhile
_WAKES = 0.05  # of a wait, until its thread has woken up
_LATE_NS = 100_000  # what waking up takes at least, by the resolution of a scheduler


class Gaps(Struct, frozen=True):
    """Gaps of host threads on the run's clock, cut at calls, by place and start.

    ``place`` numbers rank and thread.
    """

    place: Int64
    start_ns: Int64
    end_ns: Int64

    @classmethod
    def cut(cls, place: Int64, start_ns: Int64, end_ns: Int64, at: Int64, called_ns: Int64) -> Gaps:
        """Gaps that begin anew at every call within: these are of the places ``at``."""
        order = Moments(place, start_ns).order
        place, start_ns, end_ns = place[order], start_ns[order], end_ns[order]
        gap = Moments(place, start_ns).last(at, called_ns)
        known = gap >= 0
        gap, at, called_ns = gap[known], at[known], called_ns[known]
        inside = (called_ns < end_ns[gap]) & (called_ns > start_ns[gap])
        places = np.concatenate((place, at[inside]))
        starts = np.concatenate((start_ns, called_ns[inside]))
        ends = np.concatenate((end_ns, end_ns[gap[inside]]))
        order = Moments(places, starts).order
        places, starts, ends = places[order], starts[order], ends[order]
        following = np.append(starts[1:], 0)
        is_cut = np.append(places[1:] == places[:-1], False) & (following < ends)
        return cls(places, starts, np.where(is_cut, following, ends))


def joins(calls: Calls, place: Int64, gaps: Gaps) -> Int64:
    """Which gap each call was waited for in, -1 where in none; ``place`` is as in ``gaps``.

    What blocks by itself waits where it was called: a call with ``async_op=False``, a send or
    recv behind which nothing ran before it was done. Of a send or recv gloo notes the end when its
    thread has waited for it: that is in the gap. Of the others the gap that its end lies
    in, or, as gloo notes an end late, one that ended shortly before but behind the last arrival,
    whichever is less likely by chance, if such gaps are no chance for calls of that kind.
    """
    if not gaps.start_ns.size:
        return np.full(place.size, -1)
    starts = Moments(gaps.place, gaps.start_ns)
    within = starts.last(place, calls.end_ns - 1)
    holds = (within >= 0) & (gaps.end_ns[within] >= calls.end_ns)
    holds &= gaps.start_ns[within] >= calls.launch_ns
    own = starts.last(place, calls.launch_ns)
    at_call = (own >= 0) & (gaps.start_ns[own] == calls.launch_ns)
    earlier = _ended_before(calls, place, gaps, within)
    within = np.where(holds, within, -1)
    of_within, of_earlier = _odds(calls, place, gaps, (within, earlier))
    found = np.where(of_earlier < of_within, earlier, within)
    odds = np.minimum(of_within, of_earlier)
    blocks = at_call & (
        (calls.asynchronous == 0) | (calls.is_p2p & (gaps.end_ns[own] >= calls.end_ns))
    )
    found = np.where(_others_wait(calls, gaps, found), -1, found)
    found = np.where(_usually_at_once(calls, place, gaps, found, own, at_call), own, found)
    gap = np.where(_vote(calls.kind, odds, found >= 0), found, -1)
    gap = np.where(blocks, np.where(found >= 0, found, own), gap)
    return np.where(calls.is_p2p & (within >= 0), within, gap)


def _usually_at_once(
    calls: Calls, place: Int64, gaps: Gaps, found: Int64, own: Int64, at_call: Bool
) -> Bool:
    """Whether a call was waited for right behind it, as its thread does with most of its kind.

    An end that is noted late lies in a later gap: gloo's thread notes it when it gets a core. By
    chance: a long gap that ends with it has waited for it.
    """
    later = at_call & (found > own)
    if not later.any():
        return np.asarray(later)
    kind = codes(calls.kind, place)
    size = int(kind.max()) + 1
    waited = np.bincount(kind[found >= 0], minlength=size)
    at_once = np.bincount(kind[at_call & (found == own)], minlength=size)
    usual = (at_once > 0) & (2 * at_once >= waited)
    wake = np.maximum(np.abs(gaps.end_ns[found] - calls.end_ns), _LATE_NS)
    chance = wake > _WAKES * (gaps.end_ns - gaps.start_ns)[found]
    return np.asarray(later & chance & usual[kind] & (gaps.end_ns[own] > calls.last_ns))


def _others_wait(calls: Calls, gaps: Gaps, found: Int64) -> Bool:
    """Whether an asynchronous call ended while its thread waited for one that blocks.

    Not where the thread still waited when that one was done.
    """
    waits = (calls.asynchronous == 1) & (found >= 0)
    if not waits.any():
        return np.asarray(waits)
    blocks = (found >= 0) & (calls.asynchronous == 0)
    until = most(found[blocks], calls.end_ns[blocks], gaps.start_ns.size)
    length = gaps.end_ns - gaps.start_ns
    soon = until + np.maximum(_LATE_NS, (_WAKES * length).astype(np.int64))
    ends = np.minimum(calls.end_ns, gaps.end_ns[found])
    return np.asarray(waits & (until[found] != NULL) & (ends <= soon[found]))


def _ended_before(calls: Calls, place: Int64, gaps: Gaps, last: Int64) -> Int64:
    """The longest of the last gaps before an end that ended behind the last arrival."""
    best = np.full(place.size, -1)
    longest = np.zeros(place.size, dtype=np.int64)
    left = np.flatnonzero(last >= 0)
    launch_ns, last_ns, end_ns = calls.launch_ns, calls.last_ns, calls.end_ns
    for back in range(_SHORT_BEHIND):
        gap = last[left] - back
        begins, ends = gaps.start_ns[gap], gaps.end_ns[gap]
        fits = (gap >= 0) & (gaps.place[gap] == place[left]) & (ends > last_ns[left])
        fits &= begins >= launch_ns[left]
        left, gap = left[fits], gap[fits]  # of the others no earlier one does
        if not left.size:
            break
        length = np.where(ends[fits] < end_ns[left], (ends - begins)[fits], 0)
        better = length > longest[left]
        best[left[better]], longest[left[better]] = gap[better], length[better]
    return best


def _odds(calls: Calls, place: Int64, gaps: Gaps, several: Sequence[Int64]) -> list[Float64]:
    """How likely a moment of the thread lies as long behind a gap's start and as near its end."""
    found = [np.ones(place.size) for _ in several]
    places = np.arange(int(max(place.max(), gaps.place.max())) + 1)
    each = zip(rows_of_each(place, places), rows_of_each(gaps.place, places), strict=True)
    end_ns = calls.end_ns
    for rows, here in each:
        if not (rows.size and here.size):
            continue
        length = np.sort(gaps.end_ns[here] - gaps.start_ns[here])
        span = int(gaps.end_ns[here].max() - gaps.start_ns[here].min())
        for gap, odds in zip(several, found, strict=True):
            mine = rows[gap[rows] >= 0]
            end, begins, ends = end_ns[mine], gaps.start_ns[gap[mine]], gaps.end_ns[gap[mine]]
            wait = np.minimum(end, ends) - begins
            wake = np.maximum(np.abs(ends - end), _LATE_NS)
            # Per gap at least so long: the part of it that is as near its end, at most all of it.
            order = sorted_by(wait)  # of moments in order the search is far faster
            more = np.empty(wait.size, dtype=np.int64)
            more[order] = length.size - np.searchsorted(length, wait[order])
            odds[mine] = np.minimum(1.0, more * np.minimum(wake, length[-1]) / max(span, 1))
    return found


def _vote(kind: Int32, odds: Float64, found: Bool) -> Bool:
    """Whether the gaps of a kind of call are unlikely together: the geometric mean of odds."""
    size = int(kind.max(initial=-1)) + 1
    logs = np.bincount(kind[found], weights=np.log(np.maximum(odds[found], 1e-9)), minlength=size)
    count = np.maximum(np.bincount(kind[found], minlength=size), 1)
    accepted: Bool = found & (np.exp(logs / count) < _LIKELY)[kind]
    return accepted
