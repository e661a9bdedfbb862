"""Small messages that one rank sends another in a row, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, in_order
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.run.multiplied import products_ns
from commtrace.metrics.run.pipelines import messages_of

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["MessageRows", "message_rows"]

_SMALL_BYTES = 131_072  # moved in next to no time
_PAUSE_NS = 1_000_000  # from one's end to the call of the next: longer, ranks do other things
_LEAST = 8  # messages: fewer are a ring's, or of something that has several parts


class MessageRows(Struct, frozen=True, eq=False):
    """Messages on CPUs, by ``row`` and in order: what both of their ranks tell of each.

    ``arrival_ns`` is when both had called for it, ``end_ns`` when both were done.
    """

    operation: Int64
    row: Int64
    size_bytes: Int64
    arrival_ns: Int64
    end_ns: Int64

    def take(self, which: Bool) -> MessageRows:
        """Some of them."""
        columns = (getattr(self, name)[which] for name in self.__struct_fields__)
        return MessageRows(*columns)


@measure
def message_rows(run: Measures) -> MessageRows:
    """Those between one sender and one receiver of a step, on CPUs, eight or more in a row.

    A row ends where either rank multiplies matrices before it calls the next, as for a pipeline's
    next micro-batch, or does other things for a millisecond. None where no messages are matched.
    """
    its = _ends(run)
    if its is None:
        return MessageRows(*(np.empty(0, np.int64) for _ in MessageRows.__struct_fields__))
    begins = np.diff(codes(its.sender, its.receiver, its.step), prepend=-1) != 0
    for rank, called_ns, end_ns in (
        (its.sender, its.sent_ns, its.sent_end_ns),
        (its.receiver, its.wanted_ns, its.got_ns),
    ):
        begins[1:] |= called_ns[1:] - end_ns[:-1] > _PAUSE_NS
        before = _products_before(run, rank, called_ns)
        begins[1:] |= before[1:] > before[:-1]
    row = np.cumsum(begins) - 1
    found = MessageRows(
        its.operation,
        row,
        its.size_bytes,
        np.maximum(its.sent_ns, its.wanted_ns),
        np.maximum(its.sent_end_ns, its.got_ns),
    )
    return found.take(np.bincount(row)[row] >= _LEAST)


class _Ends(Struct, frozen=True, eq=False):
    """Messages by sender, receiver, step and when they were sent, and what each rank tells."""

    operation: Int64
    sender: Int64
    receiver: Int64
    step: Int64
    size_bytes: Int64
    sent_ns: Int64
    sent_end_ns: Int64
    wanted_ns: Int64
    got_ns: Int64


def _ends(run: Measures) -> _Ends | None:
    try:
        messages = messages_of(run, 1)
    except CannotLook:
        return None
    rows, sends = messages.rows, messages.rows.coded("op").being("send")
    size, operation = rows.ints("size_bytes"), rows.ints("operation")
    there = np.full(int(operation.max()) + 1, NULL)
    there[operation[~sends]] = np.flatnonzero(~sends)
    small = sends & (size != NULL) & (size <= _SMALL_BYTES) & (there[operation] != NULL)
    small &= rows.coded("device").being("cpu")
    at = np.flatnonzero(small)
    ends = messages.sender, messages.receiver, rows.ints("step"), rows.ints("arrival_ns")
    at = at[in_order(*(its[at] for its in ends))]
    if not at.size:
        return None
    got = there[operation[at]]
    sender, receiver, step, arrival = (its[at] for its in ends)
    end_ns = rows.ints("end_ns")
    return _Ends(
        operation[at],
        sender,
        receiver,
        step,
        size[at],
        sent_ns=arrival,
        sent_end_ns=end_ns[at],
        wanted_ns=rows.ints("arrival_ns")[got],
        got_ns=end_ns[got],
    )


def _products_before(run: Measures, rank: Int64, time_ns: Int64) -> Int64:
    """How many products its rank has begun before each time."""
    found = np.zeros(rank.size, np.int64)
    for one in np.unique(rank).tolist():
        mine = rank == one
        found[mine] = np.searchsorted(products_ns(run, one), time_ns[mine])
    return found
