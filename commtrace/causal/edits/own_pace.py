"""A run whose hosts launch, and call operators, as fast as when nobody records it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Float64, Int64, rows_by
from commtrace.causal.edits.run_edits import as_measured, step_ns
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.builder import HOST, HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.busy import host_busy
from commtrace.causal.work.on_core import lags_on_cores
from commtrace.causal.work.own_times import own_times
from commtrace.intervals import closed, covered
from commtrace.measures import measure
from commtrace.metrics.run.unrecorded_steps import Pace, pace
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["at_own_pace", "undisturbed", "unrecorded_pace"]

_LEAST = 1 / 4  # of the time that a launch took while it was recorded
_USUAL = 0.7  # of the same: the median of 21 programs on GPUs whose steps tell
_ALIKE = 0.97  # of a step
_UNLIKE = 1.25  # of it
_IN_STEP = 0.7  # of a step of the graph's: a host whose steps are shorter runs ahead
_TRIES = 6  # halves: to 1 % of it
_LAUNCH_NS = 1_000_000  # what takes a host longer is no launch
_LEAST_OF_OPERATORS = 1 / 10  # of the time that they took on CPUs
_BETWEEN_NS = 300_000  # two operators; who runs none for longer does what recording does not slow


class _Factors(NamedTuple):
    """Of the time that a host takes to launch, or for operators, and for all else.

    On CPUs all else is what gloo's threads take to notice and to move what is small.
    ``of_unrecorded`` says that steps are then as long as unrecorded ones, or nearly.
    """

    launching: float
    else_: float
    of_unrecorded: bool = False


_AS_RECORDED = _Factors(1.0, 1.0)


def at_own_pace(run: Measures, lag_ns: Lags) -> Lags:
    """These lags, with hosts as much faster as makes the median step one that is not recorded.

    With GPUs all that takes a host up to 1 ms between two launches: longer, it does other things,
    which recording does not slow. Where that is not enough these, too, are shorter: later steps
    have less of them, as a new shape's plans are made once. Without GPUs what its operators took,
    and what is between two unless it is long; where that is not enough also transfers of up to
    1 ms, whose ends gloo's threads note. The same lags where nobody knows of such steps.
    """
    factors = _factors(run)
    return lag_ns if factors == _AS_RECORDED else _faster(run, lag_ns, factors)


@measure
def undisturbed(run: Measures) -> Lags:
    """The lags without waits for cores, with hosts as fast as when nobody records them."""
    return at_own_pace(run, lags_on_cores(run))


def unrecorded_pace(run: Measures) -> Pace | None:
    """The pace, if steps with ``undisturbed`` lags are those that nobody records.

    Not where these are as long, or have far less to do: the first steps may be unlike later ones.
    """
    its = pace(run)
    if its is None or undisturbed(run) is lags_on_cores(run):
        return None
    return its if _factors(run).of_unrecorded else None


@measure
def _factors(run: Measures) -> _Factors:
    """How much of its time a launch, or an operator, takes when nobody records it, and all else.

    All of it if nobody knows. Where devices are busy anyway steps are as long at any pace: then
    launches take what is usual.
    """
    its = pace(run)
    on_gpu = _has_gpus(run)
    if its is None or not (its.is_slowed or on_gpu):
        return _AS_RECORDED
    measured = as_measured(run)
    median = _median_step(run, measured)
    tells = its.is_slowed and its.recorded_ns >= _IN_STEP * median
    wanted = its.times * median if tells else median

    def step(launching: float, else_: float = 1.0) -> float:
        return _median_step(run, _faster(run, measured, _Factors(launching, else_)))

    least = _LEAST if on_gpu else _LEAST_OF_OPERATORS
    if step(least) <= wanted:
        launching = _between(least, lambda its: step(its) > wanted)
        if on_gpu and launching > _USUAL and step(_USUAL) >= _ALIKE * wanted:
            launching = _USUAL
        return _Factors(launching, 1.0, of_unrecorded=tells)
    least_else = 0.0 if on_gpu else _LEAST
    without = step(least, least_else)
    if without <= wanted:
        else_ = _between(least_else, lambda its: step(least, its) > wanted)
        return _Factors(least, else_, of_unrecorded=tells)
    alike = tells and without <= _UNLIKE * wanted
    # What no host explains is none's: the recorded steps have more to do than those behind them.
    usual = _Factors(_USUAL, 1.0) if on_gpu else _Factors(least, least_else)
    return usual._replace(of_unrecorded=alike)


def _between(low: float, is_too_much: Callable[[float], bool]) -> float:
    """The largest number up to 1 that is not too much, nearly."""
    high = 1.0
    for _ in range(_TRIES):
        middle = (low + high) / 2
        low, high = (low, middle) if is_too_much(middle) else (middle, high)
    return (low + high) / 2


def _faster(run: Measures, lag_ns: Lags, factors: _Factors) -> Int64:
    its = run_graph(run)
    if not _has_gpus(run):
        lag = lag_ns.astype(np.int64)
        lag[its.own] = np.rint(lag[its.own] * (1 - (1 - factors.launching) * _calling(run)))
        moves = its.transfers[0]
        moves = moves[(lag[moves] > 0) & (lag[moves] <= _LAUNCH_NS)]
        lag[moves] = np.rint(lag[moves] * factors.else_)
        return lag
    is_host = (its.graph.kind == HOST) & (lag_ns > 0)
    factor = np.where(lag_ns <= _LAUNCH_NS, factors.launching, factors.else_)
    return np.where(is_host, np.rint(lag_ns * factor), lag_ns).astype(np.int64)


@measure
def _calling(run: Measures) -> Float64:
    """Of each edge of own work on CPUs the share in which its host ran operators one by one."""
    work = own_times(run, HOSTS)
    time = np.zeros(work.call.size)
    for (rank,), at in rows_by(run_graph(run).calls.rank[work.call]).items():
        busy = closed(host_busy(run, rank), _BETWEEN_NS)
        time[at] = covered(work.begin_ns[at], work.end_ns[at], busy)
    share: Float64 = time / np.maximum(work.end_ns - work.begin_ns, 1)
    return share


def _has_gpus(run: Measures) -> bool:
    return not run_graph(run).calls.on_cpu.all()


def _median_step(run: Measures, lag_ns: Lags) -> float:
    return median(step_ns(run, [lag_ns]))
