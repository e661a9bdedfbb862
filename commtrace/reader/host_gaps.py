"""When the host threads that call communication were idle: where their waits may have been."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from commtrace import comms
from commtrace.arrays import Bool, Int64
from commtrace.intervals import Intervals, covered, inside, intersect, subtract, union
from commtrace.reader.json.events import Hosted, Scan
from commtrace.reader.nesting import innermost

__all__ = ["host_gaps"]

_SHORTEST_NS = 5_000
_EACH = 2 / 3  # of a kind of calls: the last may be waited for behind the window
_KIND = ("op", "group", "in_bytes", "out_bytes")
_OWN_WORK = ("commtrace::", "enumerate(DataLoader)#")

_Threads = tuple[Int64, Int64, Int64]
"""Thread, start and end of something."""


def host_gaps(scan: Scan, rows: list[dict[str, Any]], rank: int) -> dict[str, Int64]:
    """The gaps between operators of the threads that called ``rows``, while any was under way.

    Calls of communication count as gaps: a wait may be within. Labels that tell of work
    without operators, a data loader's and the recorder's own, do not, but while what was called
    within is under way, as where ranks that save a checkpoint agree on it. Where the recorder
    labelled the waits of a gap, it is these. All columns but the step. None where the scan holds
    no operators, as in traces of a GPU.
    """
    called = [row for row in rows if row["thread"] is not None and row["launch_ns"] is not None]
    thread = np.asarray([row["thread"] for row in called], dtype=np.int64)
    launch = np.asarray([row["launch_ns"] for row in called], dtype=np.int64)
    end = np.asarray([row["start_ns"] + row["duration_ns"] for row in called], dtype=np.int64)
    found = []
    if thread.size and scan.operators.thread.size:
        busy, labelled = _operators(scan), _labelled(scan)
        waits = _spans(scan.annotations, _named(scan.annotations, _is_wait))
        for its in np.unique(thread).tolist():
            mine = thread == its
            gaps = _on_thread(its, launch[mine], end[mine], busy, labelled)
            labels = tuple(of[waits[0] == its] for of in waits[1:])
            if labels[0].size:
                open_ = _unlabelled([called[row] for row in np.flatnonzero(mine)], labels[0])
                gaps = _waited(gaps, labels, (launch[mine][open_], end[mine][open_]))
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
    thread: int, launch: Int64, end: Int64, busy: _Threads, labelled: _Threads
) -> _Threads:
    mine, labels = busy[0] == thread, labelled[0] == thread
    own = union(labelled[1][labels], labelled[2][labels])
    within = inside(launch, own)
    left = subtract(own, union(launch[within], np.maximum(end, launch + 1)[within]))
    starts, ends = union(
        np.concatenate((busy[1][mine], left[0])), np.concatenate((busy[2][mine], left[1]))
    )
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


def _unlabelled(calls: list[dict[str, Any]], waits: Int64) -> list[int]:
    """The calls of a thread of such kinds as no labelled wait is for, as where C++ waits.

    A wait is for the last call before it that none was for.
    """
    order = sorted(range(len(calls)), key=lambda at: calls[at]["launch_ns"])
    untold, told, at = list[int](), set[int](), 0
    for wait in np.sort(waits).tolist():
        while at < len(order) and calls[order[at]]["launch_ns"] <= wait:
            untold.append(order[at])
            at += 1
        if untold:
            told.add(untold.pop())
    kinds = [tuple(call[name] for name in _KIND) for call in calls]
    count = Counter(kinds)
    known = Counter(kinds[each] for each in told)
    return [at for at, kind in enumerate(kinds) if known[kind] < _EACH * count[kind]]


def _waited(gaps: _Threads, waits: Intervals, unlabelled: Intervals) -> _Threads:
    """Of a thread's gaps the labelled waits in them.

    And those without one while calls were under way that wait without a label.
    """
    thread, begin, until = gaps
    its = union(*waits)
    told = covered(begin, until, its) > 0
    pieces = intersect((begin[told], until[told]), its)
    long = pieces[1] - pieces[0] >= _SHORTEST_NS
    rest = ~told & (covered(begin, until, union(*unlabelled)) > 0)
    starts = np.concatenate((begin[rest], pieces[0][long]))
    ends = np.concatenate((until[rest], pieces[1][long]))
    order = np.argsort(starts)
    return np.full(order.size, thread[:1]), starts[order], ends[order]


def _operators(scan: Scan) -> _Threads:
    """Thread, start and end of all operators without others within."""
    work = scan.operators
    leaf = innermost(work.thread, work.start_ns, work.duration_ns)
    return _spans(work, leaf & ~_named(work, comms.is_communication_call))


def _labelled(scan: Scan) -> _Threads:
    """Thread, start and end of labelled work."""
    labels = scan.annotations
    is_work = _named(labels, lambda name: name.startswith(_OWN_WORK))
    return _spans(labels, is_work & ~_named(labels, _is_wait))


def _is_wait(name: str) -> bool:
    return name == comms.WAIT


def _spans(hosted: Hosted, rows: Bool) -> _Threads:
    start = hosted.start_ns[rows]
    return hosted.thread[rows], start, start + hosted.duration_ns[rows]


def _named(hosted: Hosted, is_meant: Any) -> Bool:
    meant = np.asarray([*(is_meant(name) for name in hosted.name.names), False], dtype=np.bool_)
    return np.asarray(meant[hosted.name.codes], dtype=np.bool_)
