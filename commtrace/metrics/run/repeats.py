"""Operations whose effect another one right beside them has anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, codes, first_rows, in_order, rows_by
from commtrace.comms import POINT_TO_POINT, SYNCHRONISING, members
from commtrace.metrics.run.used_between import used_between

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Coded, Rows

__all__ = ["barriers_at_messages", "needless_barriers", "reduced_twice"]

_ALWAYS = 0.9


def needless_barriers(rows: Rows) -> Rows:
    """Barriers right before or after a collective of their group that all wait in as well.

    And those behind each other there. ``rows`` are ``sequences`` with their barriers, and so is
    what is returned.
    """
    op, sequence = rows.coded("op"), rows.ints("sequence")
    is_barrier, follows = op.being("barrier"), sequence[1:] == sequence[:-1]
    holds = op.where(SYNCHRONISING.__contains__) & ~is_barrier
    beside = np.zeros(len(rows), np.bool_)
    beside[1:] |= holds[:-1] & follows
    beside[:-1] |= holds[1:] & follows
    changes = np.diff(is_barrier, prepend=False)
    changes[1:] |= ~follows
    in_a_row = np.cumsum(changes)
    beside = np.bincount(in_a_row, is_barrier & beside) > 0
    return rows.take(is_barrier & beside[in_a_row])


def barriers_at_messages(run: Measures, rows: Rows, known: Rows) -> Rows:
    """Barriers of which each rank sends or receives before or after, but for those that are known.

    With nothing but barriers between. ``rows`` are as above.
    """
    table = run.rows("collectives")
    is_message = table.coded("op").where(POINT_TO_POINT.__contains__)
    if not is_message.any():
        return rows.take(slice(0, 0))
    others = np.flatnonzero(~table.coded("op").being("barrier"))
    of_rank, launch = rows_by(table.ints("rank")[others]), table.ints("launch_ns")
    called = np.where(launch == NULL, table.ints("start_ns"), launch)
    barriers, found = np.flatnonzero(rows.coded("op").being("barrier")), np.zeros(len(rows), bool)
    for one, at in rows_by(rows.ints("rank")[barriers]).items():
        mine = others[of_rank.get(one, others[:0])]
        mine = mine[np.argsort(called[mine], kind="stable")]
        begun, message = called[mine], np.append(is_message[mine], False)
        barrier = barriers[at]
        moment = rows.ints("order")[barrier]
        before = np.searchsorted(begun, moment) - 1
        after = np.searchsorted(begun, moment, side="right")
        found[barrier] = message[before] | message[after]  # of none before it the last is False
    operation = rows.ints("operation")
    apart = np.isin(operation, operation[barriers[~found[barriers]]])
    return rows.take(found & ~apart & ~np.isin(operation, known.ints("operation")))


def reduced_twice(run: Measures, rows: Rows) -> Rows:
    """All_reduces right after one of equal bytes over a group that all their ranks were in.

    Of ``sequences``. Only where (nearly) each all_reduce of that size in the first group has such
    a second, and nothing in between that could have changed the values.
    """
    group = rows.coded("communicator")
    in_turn = in_order(*(rows.ints(name) for name in ("rank", "order", "start_ns")))
    first, second = in_turn[:-1], in_turn[1:]
    op, dtype = rows.coded("op"), rows.coded("dtype")
    again = op.being("all_reduce")[first] & (group.codes[first] != group.codes[second])
    again &= (op.codes[first] == op.codes[second]) & (dtype.codes[first] == dtype.codes[second])
    again &= dtype.known[first]
    for name in ("rank", "size_bytes"):
        again &= rows.ints(name)[first] == rows.ints(name)[second]
    first, second = first[again], second[again]
    within = _within(group.take(first), group.take(second))
    first, second = first[within], second[within]
    free = ~used_between(run, rows, first, second)
    second_of = np.full(len(rows), -1)
    second_of[first[free]] = second[free]
    firsts = in_turn[op.being("all_reduce")[in_turn]]
    kind = codes(group.take(firsts), rows.ints("size_bytes")[firsts])
    repeated = second_of[firsts] >= 0
    sure = repeated & ((np.bincount(kind, repeated) / np.bincount(kind)) >= _ALWAYS)[kind]
    return rows.take(second_of[firsts[sure]])


def _within(first: Coded, second: Coded) -> Bool:
    """Whether the second's group is known to be of some or all of the first's ranks."""
    pair = codes(first, second)
    one = first_rows(pair)
    names = zip(first.take(one).decoded(), second.take(one).decoded(), strict=True)
    inside = [
        larger is not None and smaller is not None and _members(smaller) <= _members(larger)
        for larger, smaller in names
    ]
    return np.asarray(inside, dtype=np.bool_)[pair]


def _members(communicator: str) -> frozenset[object]:
    return frozenset(members(communicator) or (communicator,))
