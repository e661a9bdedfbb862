"""Where a host waited for its GPUs, in traces that hold no call in which one could wait."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.causal.rank.device_work import DeviceWork
from commtrace.kernels import is_launch
from commtrace.quantiles import median
from commtrace.table import Coded, Rows
from commtrace.trace_tables import BLOCKING_CALLS

__all__ = ["with_waits"]

_NAME = "cudaDeviceSynchronize"


def with_waits(tables: Mapping[str, Rows]) -> Mapping[str, Rows]:
    """One rank's tables, with calls inferred if none of its ``blocking_calls`` could wait for all.

    A host that launches when all that was launched before is done is taken to have waited for
    it, until then. If it did not, it was late all the same for what was done meanwhile, and
    what the device lacked is from there to the launch.
    """
    if not tables["blocking_calls"].coded("name").where(is_launch).all():
        return tables
    work = DeviceWork.of(tables)
    known = np.flatnonzero(work.thread >= 0)
    order = known[np.argsort(work.launch_ns[known], kind="stable")]
    launch_ns = work.launch_ns[order]
    done_ns = np.maximum.accumulate(work.end_ns[order])
    before, after = launch_ns[:-1], launch_ns[1:]
    waited = (done_ns[:-1] > before) & (done_ns[:-1] <= after)
    gap_ns = (after - before)[~waited & (after > before)]
    usual_ns = int(median(gap_ns)) if gap_ns.size else 0
    end_ns = done_ns[:-1][waited]
    start_ns = np.minimum(before[waited] + usual_ns, end_ns)
    thread = work.threads.values[work.thread[order[1:][waited]]]
    return {**tables, "blocking_calls": _calls(start_ns, end_ns - start_ns, thread)}


def _calls(start_ns: Int64, duration_ns: Int64, thread: Int64) -> Rows:
    """Rows of ``blocking_calls``; what is not given is missing."""
    count = start_ns.size
    given = {"start_ns": start_ns, "duration_ns": duration_ns, "thread": thread}
    missing: Int64 = np.full(count, NULL)
    columns = {
        column.name: Coded(np.full(count, 0 if column.name == "name" else -1, np.int32), (_NAME,))
        if column.dtype == "category"
        else given.get(column.name, missing)
        for column in BLOCKING_CALLS.columns
    }
    return BLOCKING_CALLS.rows(columns)
