"""What every rank has already, though it is sent: parameters, what never changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    NULL,
    Bool,
    Float64,
    Int64,
    codes,
    distinct,
    first_rows,
    in_order,
    least,
    rows_by,
    sums,
)
from commtrace.comms import POINT_TO_POINT, TO_ROOT, is_floating, members
from commtrace.intervals import covered
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.run.elements import elements
from commtrace.quantiles import median, quantiles

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["group_and_type", "sent_again", "sent_always"]

_AVERAGES = ("all_reduce", "reduce_scatter")
_ALWAYS = 0.9  # of the steps: the window may cut one
_BESIDE = 0.01  # of the gradients' bytes: a loss that is averaged beside them
_PARTS = 3  # sizes: a batch, that one rank reads for all, has fewer
_ALONE = 2.0  # times as long as the others: the root has something to send that they have not
_WRITTEN_PER_NS = 20.0  # bytes, by a core
_AT_MOST = 0.5  # of what the others do by themselves
_ALONE_IN_ALL = 1.2  # if that holds all that they do between two operations


def sent_again(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` are broadcasts of one root, of all elements that are all_reduced.

    In the same step, of whatever type, in a group in which the root does between the two what the
    others do, and that reduces nothing to it.
    """
    op, group, size = rows.coded("op"), rows.coded("communicator"), rows.ints("size_bytes")
    is_sent, is_summed = op.being("broadcast"), op.being("all_reduce")
    known = (rows.ints("step") != NULL) & rows.coded("dtype").known
    known &= ~np.isin(group.codes, group.codes[op.being("reduce")])
    sent, summed = (np.flatnonzero(its & known & (size > 0)) for its in (is_sent, is_summed))
    if not sent.size or not summed.size:
        return np.zeros(len(rows), dtype=np.bool_)
    step, ends = _step(rows), np.full(len(rows), NULL)
    ends[summed] = rows.ints("end_ns")[summed]
    done = _done(rows.ints("sequence"), rows.ints("order"), ends)
    own = _own(run, rows, sent, _first(step[sent], done[sent], int(step.max()) + 1))
    alike = _all_that_is_summed(rows, sent, summed, step)
    again: Bool = is_sent & known & _of_sure(rows, sent, alike, own, _ALONE)
    return again


def _all_that_is_summed(rows: Rows, sent: Int64, summed: Int64, step: Int64) -> Bool:
    """Of each ``_step`` whether it sends as many elements as are summed, of any one float type.

    Or of its own: by its rank in its group in the same step.
    """
    dtype, many = rows.coded("dtype"), elements(rows)
    place = codes(rows.ints("sequence"), rows.ints("step"))
    count, first = int(step.max()) + 1, first_rows(step)
    all_sent = sums(step[sent], many[sent], count)
    is_float = dtype.where(is_floating)
    found = np.zeros(count, dtype=np.bool_)
    for one in distinct(dtype.codes[summed]).tolist():
        its = summed[dtype.codes[summed] == one]
        alike = (dtype.codes[first] == one) | (is_float[first] & is_float[its[0]])
        all_summed = sums(place[its], many[its], count)[place[first]]
        found |= alike & (all_sent <= all_summed) & (all_summed <= (1 + _BESIDE) * all_sent)
    return found


def sent_always(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` are broadcasts of one root in each step, of the same sizes.

    Of several, as a model's parameters have them, in a group that averages what it learns, and
    whose root gets nothing that the others do not get, nor does more before it sends.
    """
    op, group, size = rows.coded("op"), rows.coded("communicator"), rows.ints("size_bytes")
    is_sent = op.being("broadcast") & (rows.ints("step") != NULL)
    is_sent &= rows.coded("dtype").where(is_floating)
    is_sent &= np.isin(group.codes, group.codes[op.where(_AVERAGES.__contains__)])
    others = run.rows("collectives").coded("op").where((*TO_ROOT, *POINT_TO_POINT).__contains__)
    if not is_sent.any() or others.any():
        return np.zeros(len(rows), dtype=np.bool_)
    sent, step = np.flatnonzero(is_sent), _step(rows)
    count = int(step.max()) + 1
    kind = group_and_type(rows)[first_rows(step)]
    all_sent, sends = sums(step[sent], size[sent], count), distinct(step[sent])
    usual = quantiles(kind[sends], all_sent[sends], 50, int(kind.max()) + 1)[kind]
    alike = (_distinct(step[sent], size[sent], count) >= _PARTS) & (all_sent == usual)
    done = _done(rows.ints("rank"), rows.ints("order"), rows.ints("end_ns"))
    own = _own(run, rows, sent, _first(step[sent], done[sent], count))
    always: Bool = is_sent & _of_sure(rows, sent, alike, own, _ALONE_IN_ALL)
    return always


def _step(rows: Rows) -> Int64:
    """A number for what a rank communicates of one type in one group in one step."""
    return codes(rows.ints("rank"), group_and_type(rows), rows.ints("step"))


def group_and_type(rows: Rows) -> Int64:
    """A number for the group and the type of each row of ``sequences``."""
    return codes(rows.coded("communicator"), rows.coded("dtype"))


def _done(whose: Int64, order: Int64, end: Int64) -> Int64:
    """When all of the same number that were called before each were done; NULL for none."""
    its = in_order(whose, order)
    found = np.full(its.size, NULL)
    firsts = np.flatnonzero(np.diff(whose[its], prepend=-1))
    for first, last in pairwise([*firsts.tolist(), its.size]):
        found[its[first + 1 : last]] = np.maximum.accumulate(end[its[first : last - 1]])
    return found


def _own(run: Measures, rows: Rows, sent: Int64, since_ns: Int64) -> tuple[Float64, ...]:
    """What each ``_step`` does by itself from a time on until the first that it sends, in ns.

    How long it takes; on a GPU, which idles while its host is late, how long it computes, and how
    long it copies. NaN where unknown.
    """
    step, devices = _step(rows), device_activity(run)
    until = least(step[sent], rows.ints("order")[sent], since_ns.size)
    starts = least(step[sent], rows.ints("start_ns")[sent], since_ns.size)
    known = (since_ns != NULL) & (until != NULL)
    takes = np.where(known, until - since_ns, np.nan)
    copies = np.where(known, 0.0, np.nan)
    first = first_rows(step)
    places = rows.ints("rank")[first], rows.coded("device").take(first)
    for (rank, device), at in rows_by(*places).items():
        work = devices.get(Device(rank, str(device)))
        if device == "cpu" or work is None:
            continue
        at = at[known[at]]
        between = since_ns[at], np.maximum(starts[at], since_ns[at])
        takes[at] = covered(*between, work.compute) if work.compute else np.nan
        copies[at] = covered(*between, work.copy)
    return takes, copies


def _distinct(number: Int64, values: Int64, count: int) -> Int64:
    """How many values each of so many numbers has; what is missing is none."""
    number, values = number[values != NULL], values[values != NULL]
    return np.bincount(number[first_rows(codes(number, values))], minlength=count)


def _first(number: Int64, values: Int64, count: int) -> Int64:
    """The first value of each of so many numbers; NULL of none."""
    known = np.flatnonzero(values != NULL)[::-1]
    found = np.full(count, NULL)
    found[number[known]] = values[known]
    return found


class _Steps(Struct, frozen=True):
    """What a group sends of one type in each step of each rank, as arrays of one length.

    The ``rank``; whether what is sent is ``alike`` what all have; the ``root`` that sends it, NULL
    if unknown; what the rank did of its ``own`` before, as ``_own`` tells it; and how long that
    many bytes take a CPU to write, 0 on a GPU.
    """

    rank: Int64
    alike: Bool
    root: Int64
    own: tuple[Float64, ...]
    writing_ns: Float64

    def of(self, some: Int64) -> _Steps:
        """Some of them."""
        own = tuple(each[some] for each in self.own)
        columns = self.rank[some], self.alike[some], self.root[some]
        return _Steps(*columns, own, self.writing_ns[some])


def _of_sure(rows: Rows, sent: Int64, alike: Bool, own: tuple[Float64, ...], alone: float) -> Bool:
    """Which rows are of groups and types whose steps send them for nothing.

    ``sent`` are the rows that are sent; ``alike`` and ``own`` are by ``_step``, as in _Steps.
    """
    step, kind, group = _step(rows), group_and_type(rows), rows.coded("communicator")
    root = rows.ints("root")[sent]
    alike = alike & (_distinct(step[sent], root, alike.size) == 1)
    root = _first(step[sent], root, alike.size)
    sends = distinct(step[sent])
    row = first_rows(step)[sends]
    every = rows.ints("rank")[row]
    on_cpu = rows.coded("device").being("cpu")[row]
    writing = on_cpu * sums(step[sent], rows.ints("size_bytes")[sent], alike.size)[sends]
    its_own = tuple(each[sends] for each in own)
    steps = _Steps(every, alike[sends], root[sends], its_own, writing / _WRITTEN_PER_NS)
    sure = [
        number
        for (number,), at in rows_by(kind[row]).items()
        if _for_nothing(steps.of(at), members(group.at(row[at[0]])), alone)
    ]
    return np.isin(kind, sure)


def _for_nothing(steps: _Steps, ranks: Sequence[int], alone: float) -> bool:
    """Whether (nearly) each step sends what is alike, and its root did nothing else for it.

    What it did more in less time than it takes to write what is sent has not made that.
    """
    if steps.alike.mean() < _ALWAYS:
        return False
    root = int(median(steps.root[steps.root != NULL]))
    if root not in ranks:
        return False
    roots, too_short = steps.rank == root, median(steps.writing_ns)
    return all(
        _alike(_median(its[roots]), _median(its[~roots]), alone, too_short) for its in steps.own
    )


def _alike(own: float, others: float, alone: float, too_short: float) -> bool:
    """Whether a root's own time is the others', or a part of it longer that is too short."""
    others = max(others, 0.0)
    return own <= alone * others + min(too_short, _AT_MOST * others)


def _median(values: Float64) -> float:
    """Of those that are known; NaN of none."""
    known = values[~np.isnan(values)]
    return median(known) if known.size else np.nan
