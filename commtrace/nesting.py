"""Which events of one host thread enclose which."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Bool, Int64

__all__ = ["around", "begun_within", "enclosing", "innermost", "outermost"]


def innermost(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Bool:
    """For each event, whether no other event of its thread begins within it."""
    order = np.lexsort((-duration_ns, start_ns, thread))
    start, its = start_ns[order], thread[order]
    holds = np.zeros(order.size, dtype=np.bool_)
    holds[:-1] = (start[1:] < (start + duration_ns[order])[:-1]) & (its[1:] == its[:-1])
    result = np.ones(order.size, dtype=np.bool_)
    result[order] = ~holds
    return result


def enclosing(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """For each event the row of the innermost other of its thread in which it begins; -1 for none.

    Of those that begin together the longest encloses the others. One without duration is a moment.
    """
    order = np.lexsort((-duration_ns, start_ns, thread)).tolist()
    found = np.full(len(order), -1, dtype=np.int64)
    its, starts, ends = (column.tolist() for column in (thread, start_ns, start_ns + duration_ns))
    is_open: list[int] = []
    for row in order:
        while is_open and (ends[is_open[-1]] <= starts[row] or its[is_open[-1]] != its[row]):
            is_open.pop()
        if is_open:
            found[row] = is_open[-1]
        is_open.append(row)
    return found


def around(spans: tuple[Int64, Int64, Int64], thread: Int64, time_ns: Int64) -> Int64:
    """The innermost of these spans (thread, start, duration) at each time on a thread; -1: none."""
    moments = (thread, time_ns, np.zeros_like(time_ns))
    columns = (np.concatenate(each) for each in zip(spans, moments, strict=True))
    return enclosing(*columns)[spans[0].size :]


def begun_within(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """For each event, how many of its thread begin within it, itself counted.

    Of those that begin together the longest encloses the others.
    """
    order = np.lexsort((-duration_ns, start_ns, thread))
    found = np.zeros(thread.size, dtype=np.int64)
    for rows in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        until = np.searchsorted(start_ns[rows], start_ns[rows] + duration_ns[rows])
        found[rows] = np.maximum(until - np.arange(rows.size), 1)
    return found


def outermost(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Bool:
    """For each event, whether no other event of its thread encloses it."""
    order = np.lexsort((-duration_ns, start_ns, thread))
    result = np.zeros(order.size, dtype=np.bool_)
    cuts = np.flatnonzero(np.diff(thread[order])) + 1
    for rows in np.split(order, cuts):
        ends = np.maximum.accumulate(start_ns[rows] + duration_ns[rows])
        result[rows] = np.concatenate(([True], start_ns[rows][1:] >= ends[:-1]))[: rows.size]
    return result
