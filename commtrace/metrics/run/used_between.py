"""Whether something ran between two operations that can have used the first's result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, rows_by
from commtrace.metrics.rank.rows_of import blocks
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["MOVES", "used_between"]

_FOREVER = np.iinfo(np.int64).max
MOVES = ("as_strided", "chunk", "copy_", "detach", "empty", "narrow", "select", "slice", "view")
"""Operators that make nothing: on a CPU the backend itself moves what it received to its place."""
_SCALES = ("div", "div_", "mul", "mul_", "true_divide")
_KEEP = frozenset(f"aten::{name}" for name in (*MOVES, *_SCALES))
_SCALING_KERNEL = re.compile(r"UnaryFunctor<.*(?:Mul|Div)Functor")


class _Work(NamedTuple):
    """What may use data; ``launch_ns`` is NULL where unknown, ``communicator`` is operations'."""

    rank: Int64
    device: Coded
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    communicator: Coded | None = None


class _Between(NamedTuple):
    """Times between two operations: the first's end, the second's start, and their launches."""

    end_ns: Int64
    start_ns: Int64
    after_ns: Int64
    before_ns: Int64


def used_between(run: Measures, operations: Rows, first: Int64, second: Int64) -> Bool:
    """For each two operations of one rank and group, whether anything used the first.

    They are rows of ``operations``, which are ``sequences``. It can have used the first, and have
    fed the second, if it was launched between the two, began after the first ended and ended before
    the second began: a kernel, a copy, an operator on the CPU, or one of the ``operations`` of
    another group. What is scaled, as by the number of ranks, is still what was reduced: an average
    is no use. Of a reduce with a known root only what its root does counts: the others hold no
    sum.
    """
    used: Bool = np.zeros(first.size, np.bool_)
    if not first.size:
        return used
    one, two = operations.take(first), operations.take(second)
    places = rows_by(one.ints("rank"), one.coded("device"), one.coded("communicator"))
    launch = one.ints("launch_ns"), two.ints("launch_ns")
    after, before = (
        np.where(its == NULL, unknown, its)
        for its, unknown in zip(launch, (0, _FOREVER), strict=True)
    )
    both = _Between(one.ints("end_ns"), two.ints("start_ns"), after, before)
    for work in _work(run, operations):
        by_device = rows_by(work.rank, work.device)
        for (rank, device, communicator), at in places.items():
            mine = by_device.get((rank, device), np.empty(0, np.int64))
            if work.communicator is not None:
                mine = mine[~work.communicator.take(mine).being(communicator)]
            used[at] |= _any_inside(_Between(*(times[at] for times in both)), work, mine)
    root = one.ints("root")
    used &= (root == NULL) | (root == one.ints("rank"))
    return used


def _any_inside(both: _Between, work: _Work, mine: Int64) -> Bool:
    """Operations of one group follow each other, so that work can be between one pair only."""
    order = np.argsort(both.end_ns, kind="stable")
    start, launch = work.start_ns[mine], work.launch_ns[mine]
    near = np.searchsorted(both.end_ns[order], start, side="right") - 1
    behind = near >= 0
    near, launch, end = order[near[behind]], launch[behind], work.end_ns[mine][behind]
    launched = (launch >= both.after_ns[near]) & (launch <= both.before_ns[near])
    inside = (end <= both.start_ns[near]) & ((launch == NULL) | launched)
    found = np.zeros(order.size, np.bool_)
    found[near[inside]] = True
    return found


def _work(run: Measures, operations: Rows) -> Iterator[_Work]:
    """What may use data, one kind at a time."""
    for kernels in blocks(run, "kernels"):
        scales = kernels.coded("name").where(lambda name: bool(_SCALING_KERNEL.search(name)))
        yield _of(kernels, kernels.coded("kind").being("compute") & ~scales)
    for copies in blocks(run, "copies"):
        yield _of(copies, ~copies.coded("kind").being("Memset"))
    ops = run.rows("ops")
    keep = ops.coded("name").where(_KEEP.__contains__)
    ops = ops.take(ops.coded("kind").being("compute") & ~keep)
    start = ops.ints("start_ns")
    on_cpu = Coded(np.zeros(start.size, np.int32), ("cpu",))
    yield _Work(ops.ints("rank"), on_cpu, start, start + ops.ints("duration_ns"), start)
    yield _of(operations, slice(None))._replace(communicator=operations.coded("communicator"))


def _of(events: Rows, mine: Bool | slice) -> _Work:
    start = events.ints("start_ns")[mine]
    end = start + events.ints("duration_ns")[mine]
    rank, device = events.ints("rank")[mine], events.coded("device").take(mine)
    return _Work(rank, device, start, end, events.ints("launch_ns")[mine])
