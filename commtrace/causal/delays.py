"""What a late arrival delays, after compute has hidden what it can of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Float64, Int64, codes, first_rows, rows_by
from commtrace.intervals import NEVER, Intervals, subtract, total, union
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.rank.timelines import ready_ns
from commtrace.metrics.run.joined_rows import joined_rows, operation_of
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, quantiles

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["felt_ns"]

_QUEUED_NS = 20_000


def felt_ns(known: Rows, saved_ns: Float64, run: Measures) -> int:
    """What a run gains if operations take so much less: what compute hides gains nothing.

    Of one rank alone it is not known what is transfer: all that is saved.
    """
    if len(run.rows("ranks")) < 2:
        return round(float(saved_ns.sum()))
    number = known.ints("operation")
    operations = matched(run).operations
    these = np.isin(operations.ints("operation"), number)
    group = operations.coded("communicator").codes
    beside = np.isin(group, group[these])
    saved = np.zeros(1 + int(operations.ints("operation").max(initial=0)), np.int64)
    saved[number] = saved_ns.astype(np.int64)
    rows = joined_rows(run, beside[operation_of(run)])
    stands = _stands_ns(run, rows, saved[rows.ints("operation")])
    return int(median(stands)) if stands else 0


def _stands_ns(run: Measures, rows: Rows, late_ns: Int64) -> list[int]:
    """For how long each device is idle since operations were so late.

    ``rows`` are those of ``joined_rows``. Without the lateness an operation were done that
    much earlier, and so were the next, if it only queued behind; what a device computed in
    that time delays nobody.
    """
    arrival_ns, end_ns, queued_ns = rows.ints("arrival_ns"), rows.ints("end_ns"), _queued(rows, run)
    compute = _compute(run, rows)
    return [
        total(
            subtract(
                _stands(arrival_ns[at], end_ns[at], late_ns[at], queued_ns[at]),
                compute.get(Device(*place), NEVER),
            )
        )
        for place, at in rows_by(rows.ints("rank"), rows.coded("device")).items()
    ]


def _queued(rows: Rows, run: Measures) -> Int64:
    """How long before their arrival they were ready; 0 where the trace does not show."""
    queued = np.zeros(len(rows), np.int64)
    calls = rows.take(launched := rows.ints("launch_ns") != NULL)
    launch_ns = calls.ints("launch_ns") - _clock_offset_ns(calls)
    ready = ready_ns(run, calls.ints("rank"), calls.coded("device"), launch_ns)
    queued[launched] = calls.ints("start_ns") - ready
    return queued.clip(min=0)


def _clock_offset_ns(rows: Rows) -> Int64:
    return rows.ints("arrival_ns") - rows.ints("start_ns")


def _compute(run: Measures, rows: Rows) -> dict[Device, Intervals]:
    """Every device's compute on the run's clock."""
    rank = codes(rows.ints("rank"))
    first = first_rows(rank)
    usual_ns = quantiles(rank, _clock_offset_ns(rows), 50, first.size)
    shift = dict(zip(rows.ints("rank")[first].tolist(), usual_ns.tolist(), strict=True))
    found = {}
    for where, done in device_activity(run).items():
        if done.compute is not None:
            begun, ended = done.compute
            offset_ns = round(shift.get(where.rank, 0.0))
            found[where] = begun + offset_ns, ended + offset_ns
    return found


def _stands(arrival_ns: Int64, end_ns: Int64, late_ns: Int64, queued_ns: Int64) -> Intervals:
    """When one device was idle for the lateness, if it computed nothing."""
    queued = np.append(False, np.abs(arrival_ns[1:] - end_ns[:-1]) <= _QUEUED_NS)
    could_be_earlier = np.where(queued, queued_ns, 0)
    own = late_ns.copy()
    for at in np.flatnonzero(could_be_earlier).tolist():
        carried = min(own[at - 1], could_be_earlier[at])
        own[at] += carried
        own[at - 1] -= carried
    return union(end_ns - own, end_ns)
