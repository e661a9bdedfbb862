"""What keeps exposed communication from hiding: how it was called, and what came behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, Bool, Int64
from commtrace.intervals import covered, subtract
from commtrace.metrics.rank.activity import device_work
from commtrace.metrics.rank.exposure import exposure
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.rank.rows_of import columns_of_rank
from commtrace.trace_tables import KERNELS

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["asynchronous", "most_exposed", "unlaunched_ns"]

_NEEDED = ["rank", "device", "asynchronous", "launch_ns", "start_ns", "duration_ns"]
_BESIDE = 0.25  # of the calls of a kind: the last one of a backward pass has nothing beside it


def most_exposed(run: Measures) -> tuple[str | None, float]:
    """The operation that most of the exposed time belongs to, and its share of it in percent.

    None are those whose operation the trace does not show.
    """
    by_op = exposure(run, by="op")
    exposed = by_op["exposed_ns"].groupby(by_op["op"].astype(object), dropna=False).sum()
    if exposed.empty or not exposed.sum():
        return None, 100.0
    most = int(exposed.to_numpy().argmax())
    op = exposed.index[most]
    share = 100 * float(exposed.iloc[most] / exposed.sum())
    return (None if pd.isna(op) else str(op)), share


def asynchronous(run: Measures, op: str | None) -> pd.DataFrame:
    """Which calls of an operation are ``asynchronous``, so hold up no device; in which ``phase``.

    A trace with shapes has it. On a GPU it also shows: of calls of one phase that a stream
    waits for at once, none has compute beside it that was launched later.
    """
    mine = np.flatnonzero(run.collective_columns["op"].astype(object) == op)
    calls = (
        run.collective_columns[_NEEDED]
        .iloc[mine]
        .assign(phase=np.array(phases(run), dtype=object)[mine])
    )
    beside = pd.Series(_beside(calls, run), index=calls.index)
    phase = calls["phase"].astype(object).fillna("")
    inferred = beside.groupby([calls["rank"], phase]).transform("mean") >= _BESIDE
    recorded = calls["asynchronous"]
    return calls.assign(asynchronous=(recorded == 1).where(recorded.notna(), inferred).astype(bool))


def _beside(calls: pd.DataFrame, run: Measures) -> Bool:
    """Whether compute that was launched after a call starts while it runs."""
    found = np.zeros(len(calls), np.bool_)
    launched_calls = calls[["rank", "device"]][calls["launch_ns"].notna()]
    for rank, device in launched_calls.drop_duplicates().dropna().itertuples(index=False):
        begun, launched = _compute(run, int(rank), str(device))
        here = (calls["rank"] == rank) & (calls["device"] == device) & calls["launch_ns"].notna()
        at = np.flatnonzero(here.to_numpy(dtype=bool))
        start = calls["start_ns"].to_numpy()[at]
        end = start + calls["duration_ns"].to_numpy()[at]
        launch = calls["launch_ns"].iloc[at].to_numpy(dtype=np.int64)
        first, last = np.searchsorted(begun, start), np.searchsorted(begun, end)
        latest = np.append(np.maximum.accumulate(launched), 0)[last - 1]
        found[at] = (last > first) & (latest > launch)
    return found


def unlaunched_ns(run: Measures) -> int:
    """Exposed time before the host had launched the compute behind it: the median device's."""
    times = []
    for place, done in device_work(run).items():
        if done.compute is None or not done.communication[0].size:
            continue
        begun, launched = _compute(run, *place)
        if not begun.size:
            continue
        exposed = subtract(done.communication, done.compute)
        opens, closes = done.compute
        launch = np.minimum(launched[np.searchsorted(begun, opens)], opens)
        before = np.append(np.int64(0), closes[:-1])
        times.append(int(covered(before, np.maximum(before, launch), exposed).sum()))
    return int(np.median(times)) if times else 0


def _compute(run: Measures, rank: int, device: str) -> tuple[Int64, Int64]:
    """When compute on a device began and was launched; long ago where that is unknown."""
    its: Any = columns_of_rank(run, KERNELS, rank)
    rows = np.flatnonzero(its["kind"].being("compute") & its["device"].being(device))
    rows = rows[np.argsort(its["start_ns"][rows], kind="stable")]
    launch = its["launch_ns"][rows]
    return its["start_ns"][rows], np.where(launch == NULL, 0, launch)
