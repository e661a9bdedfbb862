"""When the host threads that call communication were idle: where their waits may have been."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from commtrace import comms
from commtrace.arrays import Bool, Int64, among, distinct
from commtrace.intervals import Intervals, covered, inside, intersect, subtract, union, united
from commtrace.nesting import innermost
from commtrace.reader.bucket_waits import buckets_taken_apart
from commtrace.reader.json.events import Hosted, Scan

__all__ = ["host_gaps"]

_SHORTEST_NS = 5_000
_EACH = 2 / 3  # of a kind of calls: the last may be waited for behind the window
_KIND = ("op", "group", "in_bytes", "out_bytes")
_AUTOGRAD = ("autograd::", "torch::autograd::")
_OWN_WORK = ("commtrace::", "enumerate(DataLoader)#")

_Threads = tuple[Int64, Int64, Int64]
"""Thread, start and end of something."""


def host_gaps(scan: Scan, rows: list[dict[str, Any]], rank: int) -> dict[str, Int64]:
    """The gaps between operators of the threads that called ``rows``, while any was under way.

    Calls of communication count as gaps: a wait may be within. Labels that tell of work
    without operators, a data loader's and the recorder's own, do not, but while what was called
    within is under way, as where ranks that save a checkpoint agree on it. Where the recorder
    labelled the waits of a gap, it is these; so is one behind which DDP takes a bucket apart.
    All columns but the step. None where the scan holds no operators, as in traces of a GPU.
    """
    called = [row for row in rows if row["thread"] is not None and row["launch_ns"] is not None]
    thread = np.asarray([row["thread"] for row in called], dtype=np.int64)
    launch = np.asarray([row["launch_ns"] for row in called], dtype=np.int64)
    end = np.asarray([row["start_ns"] + row["duration_ns"] for row in called], dtype=np.int64)
    found = []
    if thread.size and scan.operators.thread.size:
        work = scan.operators
        leaf = innermost(work.thread, work.start_ns, work.duration_ns)
        labelled = _labelled(scan)
        waits = _spans(scan.annotations, scan.annotations.name.being(comms.WAIT))
        for its in distinct(thread).tolist():
            mine = thread == its
            labels = tuple(of[waits[0] == its] for of in waits[1:])
            busy = _at_work(work, leaf, its, labels[0])
            gaps = _on_thread(its, launch[mine], end[mine], busy, labelled)
            apart = buckets_taken_apart(work, leaf, its)
            apart = distinct(apart[among(apart, gaps[2])])
            if (told := np.sort(np.append(labels[0], apart))).size:
                untold = _untold([called[row] for row in np.flatnonzero(mine)], told)
                before = among(gaps[2], apart)
                known = united(labels, (gaps[1][before], gaps[2][before]))
                gaps = _waited(gaps, known, (launch[mine][untold], end[mine][untold]))
            found.append(gaps)
    threads, starts, ends = (
        np.concatenate([np.empty(0, np.int64), *(part[i] for part in found)]) for i in range(3)
    )
    return {
        "rank": np.full(threads.size, rank),
        "thread": threads,
        "start_ns": starts,
        "duration_ns": ends - starts,
    }


def _on_thread(
    thread: int, launch: Int64, end: Int64, busy: Intervals, labelled: _Threads
) -> _Threads:
    labels = labelled[0] == thread
    own = union(labelled[1][labels], labelled[2][labels])
    within = inside(launch, own)
    left = subtract(own, union(launch[within], np.maximum(end, launch + 1)[within]))
    starts, ends = united(busy, left)
    under_way = union(launch, np.maximum(end, launch + 1))
    if not under_way[0].size:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    first = int(np.concatenate((under_way[0], starts)).min())
    last = int(np.concatenate((under_way[1], ends)).max())
    begin, until = np.concatenate(([first], ends)), np.concatenate((starts, [last]))
    # The next that ends behind the gap's start has to begin before its end.
    at = np.searchsorted(under_way[1], begin, side="right")
    next_start = np.concatenate((under_way[0], [np.iinfo(np.int64).max]))[at]
    kept = (until - begin >= _SHORTEST_NS) & (next_start < until)
    return np.full(int(kept.sum()), thread), begin[kept], until[kept]


def _untold(calls: list[dict[str, Any]], waits: Int64) -> list[int]:
    """The calls of a thread of such kinds as none of these waits is for, as where C++ waits.

    A wait is for the last call before it that none was for.
    """
    order = sorted(range(len(calls)), key=lambda at: calls[at]["launch_ns"])
    left, told, at = list[int](), set[int](), 0
    for wait in waits.tolist():
        while at < len(order) and calls[order[at]]["launch_ns"] <= wait:
            left.append(order[at])
            at += 1
        if left:
            told.add(left.pop())
    kinds = [tuple(call[name] for name in _KIND) for call in calls]
    count = Counter(kinds)
    known = Counter(kinds[each] for each in told)
    return [at for at, kind in enumerate(kinds) if known[kind] < _EACH * count[kind]]


def _waited(gaps: _Threads, waits: Intervals, untold: Intervals) -> _Threads:
    """Of a thread's gaps the waits in them that are known.

    And those without one while calls were under way of whose waits nothing tells.
    """
    thread, begin, until = gaps
    told = covered(begin, until, waits) > 0
    pieces = intersect((begin[told], until[told]), waits)
    long = pieces[1] - pieces[0] >= _SHORTEST_NS
    rest = ~told & (covered(begin, until, union(*untold)) > 0)
    starts = np.concatenate((begin[rest], pieces[0][long]))
    ends = np.concatenate((until[rest], pieces[1][long]))
    order = np.argsort(starts)
    return np.full(order.size, thread[:1]), starts[order], ends[order]


def _at_work(work: Hosted, leaf: Bool, thread: int, waits: Int64) -> Intervals:
    """When a thread ran operators: those without others within, and whole ones of libraries.

    Of these only such as neither call communication nor wait for it: torch's, too, compute
    between the operators that they call. What autograd's hold is a program's.
    """
    mine, calls = work.thread == thread, work.name.where(comms.is_communication_call)
    start, end = work.start_ns, work.start_ns + work.duration_ns
    waiting = np.sort(np.append(start[mine & calls], waits))
    waits_within = np.searchsorted(waiting, start) < np.searchsorted(waiting, end)
    library = work.name.where(lambda name: "::" in name and not name.startswith(_AUTOGRAD))
    rows = mine & ((leaf & ~calls) | (library & ~waits_within))
    return start[rows], end[rows]


def _labelled(scan: Scan) -> _Threads:
    """Thread, start and end of labelled work."""
    labels = scan.annotations
    is_work = labels.name.where(lambda name: name.startswith(_OWN_WORK))
    return _spans(labels, is_work & ~labels.name.being(comms.WAIT))


def _spans(hosted: Hosted, rows: Bool) -> _Threads:
    start = hosted.start_ns[rows]
    return hosted.thread[rows], start, start + hosted.duration_ns[rows]
