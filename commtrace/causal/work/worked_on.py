"""What ranks compute on: operators and their inputs, which are in the files only.

Analysing leaves them out, so that the files of the ranks in question are read once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Int64, grouped
from commtrace.causal.run.builder import DEVICES, HOSTS
from commtrace.causal.work.own_times import OwnTimes, own_times, steps_of_work
from commtrace.engine import each, for_files
from commtrace.errors import TraceError
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.nesting import around, enclosing
from commtrace.reader.json import OperatorInputs, operator_inputs

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Done", "What", "WorkedOn", "holds_sparse", "worked_on"]


class What(NamedTuple):
    """An operator, and the shapes and types of its inputs, as JSON."""

    name: str
    shapes: str
    types: str


class Done(NamedTuple):
    """How often, and for how long in all."""

    times: float
    time_ns: float


WorkedOn = Mapping[What, Done]
"""What was done on what."""


class _Asked(NamedTuple):
    """Of one rank's file what it computed: when and on which thread it ran, or was launched."""

    file: Path
    is_launched: bool
    thread: Int64
    at_ns: Int64
    duration_ns: Int64
    step: Int64


def holds_sparse(name: str) -> bool:
    """Whether an operator works on sparse tensors: how much these hold no shape tells."""
    return "sparse" in name


@measure
def worked_on(run: Measures, ranks: tuple[int, ...]) -> Mapping[int, Mapping[int, WorkedOn]]:
    """What ranks computed on in each step, by its number, as far as their files tell it.

    On GPUs it is the operator that launched a kernel, and the kernel's time; on CPUs an operator's
    own, without those that it calls. A rank lacks where shapes were not recorded
    (``record_shapes=True``), and where its file cannot be read again, or is one of several.
    """
    work = cache(partial(own_times, run))
    asked = {rank: its for rank in ranks if (its := _asked(run, rank, work)) is not None}
    rank_of = {its.file: rank for rank, its in asked.items()}
    outcomes = each(_done, [*asked.values()], for_files([*rank_of]))
    return {
        rank_of[its.file]: found for its, found in outcomes if isinstance(found, dict) and found
    }


def _asked(run: Measures, rank: int, work: Callable[[int], OwnTimes]) -> _Asked | None:
    file = file_of(run, rank)
    if file is None:
        return None
    is_launched = rank in ranks_of(run, "kernels")
    table, at = ("kernels", "launch_ns") if is_launched else ("ops", "start_ns")
    its = run.rows(table, places_of_rank(run, table, rank))
    its = its.take(its.coded("kind").being("compute"))
    if not len(its):
        return None
    of = work(DEVICES if is_launched else HOSTS)
    step = steps_of_work(run, rank, its.ints("start_ns"), its.ints("step"), of)
    thread, at_ns, duration_ns = map(its.ints, ("thread", at, "duration_ns"))
    return _Asked(file, is_launched, thread, at_ns, duration_ns, step)


def _done(asked: _Asked) -> dict[int, WorkedOn] | None:
    try:
        its = operator_inputs(asked.file)
    except TraceError:
        return None
    operator, step, time_ns = (_launching if asked.is_launched else _running)(its, asked)
    operator = _for_sparse(its, operator)
    columns = [column.take(operator) for column in (its.name, its.shapes, its.types)]
    found: dict[int, dict[What, Done]] = {}
    for rows in grouped(step, *columns):
        what = What(*(str(column.at(int(rows[0]))) for column in columns))
        its_step = found.setdefault(int(step[rows[0]]), {})
        its_step[what] = Done(rows.size, int(time_ns[rows].sum()))
    return dict(found)


def _launching(its: OperatorInputs, asked: _Asked) -> tuple[Int64, Int64, Int64]:
    """The operators that launched kernels, in which step, and how long these took."""
    by = around((its.thread, its.start_ns, its.duration_ns), asked.thread, asked.at_ns)
    return by[by >= 0], asked.step[by >= 0], asked.duration_ns[by >= 0]


def _for_sparse(its: OperatorInputs, operator: Int64) -> Int64:
    """Of each of these operators the one that called it, if for sparse tensors; else itself.

    What multiplies these has the name of what multiplies others.
    """
    sparse = its.name.where(holds_sparse)
    if not sparse.any():
        return operator
    outer = enclosing(its.thread, its.start_ns, its.duration_ns)[operator]
    return np.where((outer >= 0) & sparse[outer], outer, operator)


def _running(its: OperatorInputs, asked: _Asked) -> tuple[Int64, Int64, Int64]:
    """The operators within those asked for, in which step, and how long each ran itself."""
    outer = enclosing(its.thread, its.start_ns, its.duration_ns)
    called = outer >= 0
    within = np.bincount(outer[called], weights=its.duration_ns[called], minlength=outer.size)
    own_ns = np.maximum(its.duration_ns - within.astype(np.int64), 0)
    by = around((asked.thread, asked.at_ns, asked.duration_ns), its.thread, its.start_ns)
    rows = np.flatnonzero(by >= 0)
    return rows, asked.step[by[rows]], own_ns[rows]
