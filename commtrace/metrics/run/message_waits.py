"""How long the sends and recvs of gloo kept their threads waiting once both ends had called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int32, Int64, codes, distinct, narrow, rows_of_each
from commtrace.comms import POINT_TO_POINT
from commtrace.measures import measure
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["MessageWaits", "message_waits"]

_AT_ONCE_NS = 100_000
"""A wait that is over sooner found its message done."""


class MessageWaits(Struct, frozen=True, eq=False):
    """By row of ``collectives``.

    gloo notes that a send or recv is done when its thread has waited for it, one after the other
    as they are awaited. ``noted_late`` are those whose wait returned at once: they were done at
    some time before, behind their last arrival; ``late_operations`` are the messages of which the
    receiver has no other note. ``blocked_ns`` is how long the thread waited for the others, while
    both ends had called; 0 for all other rows.
    """

    noted_late: Bool
    late_operations: Int64
    blocked_ns: Int32 | Int64


@measure
def message_waits(run: Measures) -> MessageWaits:
    """The waits for sends and recvs that CPUs made."""
    table, found = run.rows("collectives"), matched(run)
    rank, thread, launch = (table.ints(name) for name in ("rank", "thread", "launch_ns"))
    end = table.ints("start_ns") + table.ints("duration_ns")
    op = table.coded("op")
    sent = table.coded("device").being("cpu") & op.where(POINT_TO_POINT.__contains__)
    message = sent & (thread != NULL) & (launch != NULL)
    if not message.any():
        none, nothing = (np.broadcast_to(its, rank.size) for its in (np.False_, np.int64(0)))
        return MessageWaits(none, np.empty(0, np.int64), nothing)
    gaps = run.rows("host_gaps")
    begins, ends = gaps.when()
    place = codes(
        np.concatenate((rank, gaps.ints("rank"))), np.concatenate((thread, gaps.ints("thread")))
    )
    place, of_gap = place[: rank.size], place[rank.size :]
    since = np.where(message, launch, end)
    places = np.arange(max(place.max(initial=-1), of_gap.max(initial=-1)) + 1)
    calls_of, gaps_of = (rows_of_each(its, places) for its in (place, of_gap))
    for its in distinct(place[message]).tolist():
        mine, here = calls_of[its], gaps_of[its]
        mine = mine[thread[mine] != NULL]
        before = _before(end[mine], np.sort(np.concatenate((end[mine], launch[mine]))))
        idle = _idle(end[mine], begins[here], ends[here])
        since[mine] = np.maximum(since[mine], np.maximum(before, idle))
    arrived = found.operations.ints("last_arrival_ns")[operation_of(run)]
    ended = found.waits.ints("end_ns")
    waited = message & (end - since > _AT_ONCE_NS)
    known = waited & (arrived != NULL) & (ended != NULL)
    blocked = np.where(known, np.minimum(ended - arrived, end - since), 0)
    late = message & ~waited & (end - launch > _AT_ONCE_NS)
    operations = found.waits.ints("operation")[late & op.being("recv")]
    return MessageWaits(late, operations, narrow(np.maximum(blocked, 0)))


def _before(end: Int64, ordered: Int64) -> Int64:
    """For each end when its thread last called, or was done waiting, before it."""
    return ordered[np.maximum(np.searchsorted(ordered, end) - 1, 0)]


def _idle(end: Int64, begins: Int64, ends: Int64) -> Int64:
    """Since when no operator had run at each end; the end itself where one ran."""
    order = np.argsort(begins, kind="stable")
    begins, ends = np.append(begins[order], 0), np.append(ends[order], 0)
    at = np.searchsorted(begins[:-1], end) - 1
    return np.where((at >= 0) & (ends[at] >= end), begins[at], end)
