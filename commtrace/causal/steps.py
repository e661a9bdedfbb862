"""Each rank's steps: where their time went, and how much of it was on the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64, codes, first_rows, sums
from commtrace.causal.critical_path import critical_path
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.rank.devices import DEVICE_STEPS, devices
from commtrace.metrics.run.run_clock import clock_offsets
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import profiler_steps
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["STEP_TIMES", "path_of", "step_times_by_rank"]

_SUMS = ("compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns")

STEP_TIMES = Table(
    "steps",
    "one step on one rank; times of several devices are summed",
    (
        Column("rank", "int64", "The rank."),
        Column("step", "int64", "n of `ProfilerStep#n`."),
        Column("start_ns", "Int64", "When its host began, on the run's clock.", "ns"),
        Column("duration_ns", "int64", "How long its host took.", "ns"),
        *(Column(column.name, "Int64", column.about, "ns") for column in DEVICE_STEPS.only(_SUMS)),
        Column("wait_ns", "int64", "Its waiting for other ranks in what it launched.", "ns"),
        Column(
            "critical_ns",
            "Int64",
            "Its share of the critical path of the step; null where no path is known.",
            "ns",
        ),
    ),
)


def path_of(run: Measures) -> Rows | None:
    """The run's critical path; None where the model does not hold its communication."""
    try:
        return critical_path(run)
    except CannotLook:
        return None


@measure
def step_times_by_rank(run: Measures) -> Rows:
    """Every step of every rank: STEP_TIMES."""
    steps = profiler_steps(run)
    steps = steps.take(first_rows(codes(steps.ints("rank"), steps.ints("step"))))
    steps = steps.take(np.lexsort((steps.ints("step"), steps.ints("rank"))))
    rank = steps.ints("rank")
    start, known = clock_offsets(run).on_run_clock(steps.ints("start_ns"), rank)
    did, path = devices(run, by_step=True), path_of(run)
    waits, step = matched(run).waits, run.rows("collectives").ints("step")
    waited = _summed(steps, waits.ints("rank"), step, waits.ints("wait_ns"))
    critical = np.full(len(steps), NULL)
    if path is not None:
        critical = _of(steps, path, "time_ns").clip(min=0)
    return STEP_TIMES.rows(
        {
            "rank": rank,
            "step": steps.ints("step"),
            "start_ns": np.where(known, start, NULL),
            "duration_ns": steps.ints("duration_ns"),
            **{name: _of(steps, did, name) for name in _SUMS},
            "wait_ns": waited.clip(min=0),
            "critical_ns": critical,
        }
    )


def _of(steps: Rows, its: Rows, name: str) -> Int64:
    return _summed(steps, its.ints("rank"), its.ints("step"), its.ints(name))


def _summed(steps: Rows, rank: Int64, step: Int64, values: Int64) -> Int64:
    """The sum of what is known of each rank's step; NULL where nothing is."""
    known = values != NULL
    place = codes(
        np.append(steps.ints("rank"), rank[known]), np.append(steps.ints("step"), step[known])
    )
    place, of = np.split(place, [len(steps)])
    count = int(max(place.max(initial=-1), of.max(initial=-1))) + 1
    is_known = np.bincount(of, minlength=count) > 0
    return np.where(is_known, sums(of, values[known], count), NULL)[place]
