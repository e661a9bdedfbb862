"""A run whose hosts launch as fast as they do when nobody records it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.causal.edits.run_edits import as_measured, step_ns
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.builder import HOST
from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import measure
from commtrace.metrics.run.unrecorded_steps import pace

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["at_own_pace", "launched_unrecorded"]

_LEAST = 1 / 4  # of the time that a launch took while it was recorded
_TRIES = 6  # halves: to 1 % of it
_LAUNCH_NS = 1_000_000  # what takes a host longer is no launch


def at_own_pace(run: Measures, lag_ns: Lags) -> Lags:
    """These lags, with hosts as much faster as makes the median step one that is not recorded.

    All that takes a host up to 1 ms between two launches: longer, it does other things,
    which recording does not slow. The same lags where nobody knows of such steps.
    """
    factor = _factor(run)
    return lag_ns if factor == 1 else _faster(run, lag_ns, factor)


def launched_unrecorded(run: Measures, lag_ns: Lags) -> Lags:
    """The same where hosts only launch; where they compute themselves, these lags."""
    return lag_ns if run_graph(run).calls.on_cpu.any() else at_own_pace(run, lag_ns)


@measure
def _factor(run: Measures) -> float:
    """How much of its time a launch takes when nobody records it; all of it if nobody knows."""
    its = pace(run)
    if its is None or not its.is_slowed:
        return 1.0
    measured = as_measured(run)
    wanted = its.unrecorded_ns / its.recorded_ns * _median_step(run, measured)
    low, high = _LEAST, 1.0
    for _ in range(_TRIES):
        middle = (low + high) / 2
        longer = _median_step(run, _faster(run, measured, middle)) > wanted
        low, high = (low, middle) if longer else (middle, high)
    return (low + high) / 2


def _faster(run: Measures, lag_ns: Lags, factor: float) -> Int64:
    launches = (run_graph(run).graph.kind == HOST) & (lag_ns > 0) & (lag_ns <= _LAUNCH_NS)
    return np.where(launches, np.rint(lag_ns * factor), lag_ns).astype(np.int64)


def _median_step(run: Measures, lag_ns: Lags) -> float:
    return float(np.median(step_ns(run, [lag_ns])))
