"""Python objects that are sent again and again: pickled by who sends, unpickled by who receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import (
    NULL,
    Bool,
    Int64,
    codes,
    distinct,
    first_rows,
    grouped,
    in_order,
    least,
    most,
    sums,
)
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.run.joined_rows import joined_rows
from commtrace.metrics.run.object_collectives import before_objects, lengths_of_objects
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, quantiles

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["exchanged_objects", "messages_of_objects", "same_objects", "sent_states"]

_STEPS = 3
_SEVERAL = 4  # in a step
_OFTEN = 10  # times, in a run without steps
_LENGTHS_BYTES = 64  # of eight objects in a message
_STATE_BYTES = 1_000_000  # such pickles are of tensors
_LEAST_BYTES = 256  # pickles of a few numbers are as long as each other
_LONGER = 2.0  # times as long as unpickling
_BYTES_PER_NS = 1.0  # what is unpickled faster is only copied


def same_objects(rows: Rows) -> Bool:
    """Which rows of ``sequences`` broadcast objects of one rank, as large in every step.

    The recorded window may cut a step. Not where the sender is busy for much longer before than
    the receivers are behind: it makes what it sends.
    """
    at = _in_steps(rows, _lengths(rows, "broadcast", ("broadcast",)))
    sequence, root = rows.ints("sequence"), rows.ints("root")
    count = int(sequence.max(initial=-1)) + 1
    one_root = least(sequence[at], root[at], count) == most(sequence[at], root[at], count)
    at = at[one_root[sequence[at]] & (root[at] != NULL)]
    if not at.size:
        return _flags(rows, at)
    cell = codes(sequence[at], rows.ints("step")[at])
    first = first_rows(cell)
    sent_bytes = sums(cell, rows.ints("size_bytes")[at + 1], first.size)
    whose = codes(sequence[at][first])
    same = sent_bytes == quantiles(whose, sent_bytes, 50, first.size)[whose]
    same &= sent_bytes >= _LEAST_BYTES
    at = _in_every_step(rows, at[same[cell]])
    if not at.size:
        return _flags(rows, at)
    own = _own_ns(rows)
    its = (at[some] for some in grouped(rows.coded("communicator").take(at)))
    return _flags(rows, *(some for some in its if _only_pickles(rows, some, *own)))


def sent_states(rows: Rows) -> Bool:
    """Which rows of ``sequences`` broadcast large objects again and again, as a model's state.

    In several steps, though not in all, and whatever else the sender does before.
    """
    at = _in_steps(rows, _lengths(rows, "broadcast", ("broadcast",)))
    at = at[rows.ints("size_bytes")[at + 1] >= _STATE_BYTES]
    return _flags(rows, at[_steps_having(rows, at) >= _STEPS])


def exchanged_objects(rows: Rows) -> Bool:
    """Which rows of ``sequences`` exchange objects between all ranks, in every step.

    Or scatter one rank's, behind the size of the largest; or send it, several in a step, as a
    model's tensors one by one. In a run without steps those of groups that do so ten times or more.
    """
    gathered = _lengths(rows, "all_gather", ("all_gather", "gather"))
    scattered, sent = (_lengths(rows, "broadcast", (op,)) for op in ("scatter", "broadcast"))
    step = codes(rows.ints("sequence")[sent], rows.ints("step")[sent])
    sent = sent[np.bincount(step)[step] >= _SEVERAL]
    at = np.sort(np.concatenate((gathered, scattered, sent)))
    if (rows.ints("step") != NULL).any():
        return _flags(rows, _in_every_step(rows, _in_steps(rows, at)))
    sequence = rows.ints("sequence")[at]
    return _flags(rows, at[np.bincount(sequence)[sequence] >= _OFTEN])


def messages_of_objects(run: Measures) -> Rows:
    """The ends of messages that carry objects, or their lengths, as ``joined_rows``.

    As of ``send_object_list``: a few lengths, and right behind them, to the same rank, as many
    bytes. In several steps, or of a pair ten times in a run without steps.
    """
    table = run.rows("collectives")
    op, dtype, size = table.coded("op"), table.coded("dtype"), table.ints("size_bytes")
    rank, step, start, peer = (table.ints(name) for name in ("rank", "step", "start_ns", "peer"))
    at = np.flatnonzero(op.where(POINT_TO_POINT.__contains__) & (size != NULL))
    at = at[in_order(rank[at], op.codes[at].astype(np.int64), start[at])]
    whose = codes(rank, op.codes, peer, step, matched(run).matches.coded("communicator").codes)
    tells = np.flatnonzero(before_objects(dtype.take(at), whose[at]) & (size[at] <= _LENGTHS_BYTES))
    if not tells.size:
        return table.take(slice(0, 0))
    first = at[tells]
    if (step != NULL).any():
        often = distinct(step[first][step[first] != NULL]).size >= _STEPS
    else:
        often = np.bincount(whose[first]).max() >= _OFTEN
    found = np.zeros(len(table), np.bool_)
    found[first] = found[at[tells + 1]] = often
    return joined_rows(run, found)


def _lengths(rows: Rows, of_lengths: str, of_objects: tuple[str, ...]) -> Int64:
    """The rows that tell lengths, right before the bytes."""
    op = rows.coded("op")
    is_first = lengths_of_objects(rows)[:-1] & op.being(of_lengths)[:-1]
    return np.flatnonzero(is_first & op.where(of_objects.__contains__)[1:])


def _in_steps(rows: Rows, at: Int64) -> Int64:
    """Those of some rows that are of the same step as the next."""
    step = rows.ints("step")
    both: Int64 = at[(step[at] != NULL) & (step[at] == step[at + 1])]
    return both


def _in_every_step(rows: Rows, at: Int64) -> Int64:
    """Those of some rows whose group has one in each of its rank's steps, but for one."""
    if not at.size:
        return at
    rank, step = rows.ints("rank"), rows.ints("step")
    known = step != NULL
    cells = np.flatnonzero(known)[first_rows(codes(rank[known], step[known]))]
    ranks = np.bincount(rank[cells], minlength=int(rank.max()) + 1)
    count = _steps_having(rows, at)
    return at[(count >= _STEPS) & (ranks[rank[at]] - count <= 1)]


def _steps_having(rows: Rows, at: Int64) -> Int64:
    """In how many steps the group of each of some rows has one of these."""
    step, sequence = (rows.ints(name)[at] for name in ("step", "sequence"))
    once = sequence[first_rows(codes(sequence, step))]
    having: Int64 = np.bincount(once)[sequence]
    return having


def _only_pickles(rows: Rows, at: Int64, before: Int64, behind: Int64) -> bool:
    """Whether senders, before they send lengths, do not much more than receivers behind objects.

    ``before`` and ``behind`` are what each row's rank did since what it called last, in any group,
    barriers aside, and until what it calls next.
    """
    rank = rows.ints("rank")
    sends = rank[at] == rows.ints("root")[at]
    times = (before[at], sends), (behind[at + 1], ~sends)
    known = [(time != NULL, who) for time, who in times]
    if not all((has & who).any() and (has & ~who).any() for has, who in known):
        return False
    pickling, unpickling = (
        float(median(time[has & who]) - median(time[has & ~who]))
        for (time, who), (has, _) in zip(times, known, strict=True)
    )
    slow = unpickling > median(rows.ints("size_bytes")[at + 1]) / _BYTES_PER_NS
    return slow and pickling <= _LONGER * unpickling


def _own_ns(rows: Rows) -> tuple[Int64, Int64]:
    """How long each row's rank was in no call: since its last that was no barrier; to its next.

    NULL of the first and of the last.
    """
    rank, order, end = (rows.ints(name) for name in ("rank", "order", "end_ns"))
    its = in_order(rank, order)
    same = rank[its[1:]] == rank[its[:-1]]
    between = order[its[1:]] - end[its[:-1]]
    so_far = np.append(0, np.cumsum(np.where(same, between, 0)))
    at, barrier = np.arange(its.size), rows.coded("op").being("barrier")[its]
    since = np.append(-1, np.maximum.accumulate(np.where(barrier, -1, at)))[:-1]
    known = (since >= 0) & (rank[its[since]] == rank[its])
    before, behind = np.full(its.size, NULL), np.full(its.size, NULL)
    before[its[known]] = (so_far - so_far[since])[known]
    behind[its[:-1][same]] = between[same]
    return before, behind


def _flags(rows: Rows, *at: Int64) -> Bool:
    """These rows, and each one's next."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for some in at:
        found[some] = found[some + 1] = True
    return found
