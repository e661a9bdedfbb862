"""How many operators hosts ran in their own work, and for how long they ran one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Float64, Int64, rows_by
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.busy import host_busy
from commtrace.causal.work.own_times import own_times
from commtrace.intervals import closed, covered
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["Called", "called"]

_BETWEEN_NS = 300_000  # two operators; who runs none for longer does what recording does not slow


class Called(NamedTuple):
    """Of each edge of own work on CPUs: its operators, the time in which it called these, all."""

    operators: Float64
    calling_ns: Float64
    length_ns: Int64


@measure
def called(run: Measures) -> Called:
    """Of one that was under way at an edge's end, the part that its time there is of its own."""
    work = own_times(run, HOSTS)
    operators, time = np.zeros(work.call.size), np.zeros(work.call.size)
    for (rank,), at in rows_by(run_graph(run).calls.rank[work.call]).items():
        begin, end = work.begin_ns[at], work.end_ns[at]
        time[at] = covered(begin, end, closed(host_busy(run, rank), _BETWEEN_NS))
        ops = rows_of_rank(run, "ops", rank)
        ops = ops.take(ops.coded("kind").being("compute"))
        for rows in rows_by(ops.ints("thread")).values():
            before = _Until(run, rank, ops.take(rows))
            operators[at] += before(end) - before(begin)
    return Called(operators, time, work.end_ns - work.begin_ns)


class _Until:
    """How many operators a thread had run until some time."""

    def __init__(self, run: Measures, rank: int, ops: Rows) -> None:
        start = on_run(run, rank, ops.ints("start_ns"))
        order = np.argsort(start, kind="stable")
        start, end = start[order], (start + ops.ints("duration_ns"))[order]
        self._times = np.maximum.accumulate(np.stack((start, end), axis=1).ravel())
        many = np.cumsum(np.maximum(ops.ints("operators")[order], 1))
        self._many = np.stack((np.append(0, many[:-1]), many), axis=1).ravel()

    def __call__(self, times_ns: Int64) -> Float64:
        many: Float64 = np.interp(times_ns, self._times, self._many)
        return many
