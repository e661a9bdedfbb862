"""What a late arrival delays, after compute has hidden what it can of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.intervals import Intervals, subtract, total, union
from commtrace.metrics.rank.activity import device_work
from commtrace.metrics.rank.timelines import ready_ns
from commtrace.metrics.run.joined_rows import JOINED_ROWS, joined_rows, operation_of
from commtrace.metrics.run.waits import matched
from commtrace.packed import columns_in
from commtrace.table import Rows

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["felt_ns"]


def felt_ns(known: Rows | Any, saved_ns: Float64 | Any, run: Measures) -> int:  # TRANSITION
    """What a run gains if operations take so much less: what compute hides gains nothing.

    Of one rank alone it is not known what is transfer: all that is saved.
    """
    if len(run.ranks) < 2:
        return round(float(saved_ns.sum()))
    number = np.asarray(known.columns["operation"] if hasattr(known, "table") else known.operation)
    operations = matched(run).operations
    these = np.isin(operations.ints("operation"), number)
    group = operations.coded("communicator").codes
    beside = np.isin(group, group[these])
    saved = dict(zip(number.tolist(), np.asarray(saved_ns, np.float64).tolist(), strict=True))
    return delay_ns(joined_rows(run, beside[operation_of(run)]), saved, run)


_QUEUED_NS = 20_000
_NEVER: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


def delay_ns(rows: pd.DataFrame, lateness: dict[int, float], run: Measures) -> int:
    """Wall time that ranks are idle since operations were late, the ranks' median.

    ``lateness`` is by operation, in ns; else as ``stands_ns``.
    """
    late = rows["operation"].map(lateness).fillna(0).astype("int64")
    stands = stands_ns(rows.assign(late_ns=late), run)
    return int(np.median(stands)) if stands else 0


def stands_ns(rows: pd.DataFrame, run: Measures) -> list[int]:
    """For how long each device is idle since operations were ``late_ns`` late.

    ``rows`` are those of ``joined_rows``. Without the lateness an operation were done that
    much earlier, and so were the next, if it only queued behind; what a device computed in
    that time delays nobody.
    """
    rows = rows.assign(queued_ns=_queued(rows, run))
    compute = _compute(run, rows)
    return [
        total(_stands(mine, compute.get(cast("tuple[int, str]", place), _NEVER)))
        for place, mine in rows.groupby(["rank", "device"], observed=True)
    ]


def _queued(rows: pd.DataFrame, run: Measures) -> Int64:
    """How long before their arrival they were ready; 0 where the trace does not show."""
    queued = np.zeros(len(rows), np.int64)
    launched = rows["launch_ns"].notna().to_numpy()
    clock_offset_ns = rows["arrival_ns"] - rows["start_ns"]
    launch_ns = (rows["launch_ns"] - clock_offset_ns)[launched].to_numpy(np.int64)
    its = Rows(JOINED_ROWS, columns_in(rows[launched]))
    queued[launched] = its.ints("start_ns") - ready_ns(
        run, its.ints("rank"), its.coded("device"), launch_ns
    )
    return queued.clip(min=0)


def _compute(run: Measures, rows: pd.DataFrame) -> dict[tuple[int, str], Intervals]:
    """Every device's compute on the run's clock."""
    found = {}
    clock_offset_ns = (rows["arrival_ns"] - rows["start_ns"]).groupby(rows["rank"]).median()
    for where, done in device_work(run).items():
        if done.compute is not None:
            begun, ended = done.compute
            shift = round(float(clock_offset_ns.get(where.rank, 0)))
            found[where.rank, where.device] = begun + shift, ended + shift
    return found


def _stands(rows: pd.DataFrame, compute: Intervals) -> Intervals:
    """When one device was idle for the lateness."""
    arrival, end, late = (
        rows[name].to_numpy(np.int64) for name in ("arrival_ns", "end_ns", "late_ns")
    )
    queued = np.append(False, np.abs(arrival[1:] - end[:-1]) <= _QUEUED_NS)
    could_be_earlier = np.where(queued, rows["queued_ns"].to_numpy(np.int64), 0)
    own = late.copy()
    for at in np.flatnonzero(could_be_earlier).tolist():
        carried = min(own[at - 1], could_be_earlier[at])
        own[at] += carried
        own[at - 1] -= carried
    return subtract(union(end - own, end), compute)
