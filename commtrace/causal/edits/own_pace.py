"""A run whose hosts launch, and call operators, as fast as when nobody records it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.edits.run_edits import as_measured, step_ns
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.builder import HOST
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.called import called
from commtrace.causal.work.on_core import lags_on_cores
from commtrace.measures import measure
from commtrace.metrics.run.unrecorded_steps import Pace, pace, recording_adds_ns
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
_ADDS_NS = 500  # at most, to an operator: as measured; more is of what takes memory and cores


class _Factors(NamedTuple):
    """Of the time that a host takes to launch, or for operators, and for all else.

    On CPUs recording adds ``adds_ns`` to each operator before, and all else is what gloo's
    threads take to notice and to move what is small. ``of_unrecorded`` says that steps are then as
    long as unrecorded ones, or nearly.
    """

    launching: float = 1.0
    else_: float = 1.0
    adds_ns: float = 0.0
    of_unrecorded: bool = False


_AS_RECORDED = _Factors()


def at_own_pace(run: Measures, lag_ns: Lags) -> Lags:
    """These lags, with hosts as much faster as makes the median step one that is not recorded.

    With GPUs all that takes a host up to 1 ms between two launches: longer, it does other things,
    which recording does not slow. Where that is not enough these, too, are shorter: later steps
    have less of them, as a new shape's plans are made once. Without GPUs each operator takes so
    much less, up to 0.5 µs; where that is not enough, all that they take and what lies between two
    unless it is long is shorter alike, then also transfers of up to 1 ms, whose ends gloo's threads
    note. Without steps each operator takes less by what the recorder measured. The same lags where
    nobody knows.
    """
    factors = _factors(run)
    return lag_ns if factors == _AS_RECORDED else _faster(run, lag_ns, factors)


@measure
def undisturbed(run: Measures) -> Lags:
    """The lags without waits for cores, with hosts as fast as when nobody records them."""
    return at_own_pace(run, lags_on_cores(run))


@measure
def unrecorded_pace(run: Measures) -> Pace | None:
    """The pace, if steps with ``undisturbed`` lags are those that nobody records.

    Not where these are as long, or have far less to do: the first steps may be unlike later ones.
    Of a run without steps, of a tenth of it, by what recording adds to each operator.
    """
    if not _factors(run).of_unrecorded:
        return None
    if its := pace(run):
        return its
    measured = as_measured(run)
    recorded, unrecorded = (_whole(run, lag) for lag in (measured, at_own_pace(run, measured)))
    return Pace(recorded, unrecorded, recording_adds_ns(run))


@measure
def _factors(run: Measures) -> _Factors:
    """How much less a launch, or an operator, takes when nobody records it, and all else.

    All as recorded if nobody knows.
    """
    its, adds_ns = pace(run), recording_adds_ns(run)
    if its is not None:
        return _on_gpus(run, its) if _has_gpus(run) else _on_cpus(run, its)
    if adds_ns is not None and not _has_gpus(run):
        return _without_steps(run, adds_ns)
    return _AS_RECORDED


def _on_gpus(run: Measures, its: Pace) -> _Factors:
    """Where devices are busy anyway steps are as long at any pace: launches take what is usual."""
    tells, wanted = _wanted(run, its)

    def step(launching: float, else_: float = 1.0) -> float:
        return _median_step(run, _Factors(launching, else_))

    if step(_LEAST) <= wanted:
        launching = _between(_LEAST, lambda its: step(its) > wanted)
        if launching > _USUAL and step(_USUAL) >= _ALIKE * wanted:
            launching = _USUAL
        return _Factors(launching, of_unrecorded=tells)
    without = step(_LEAST, 0.0)
    if without <= wanted:
        else_ = _between(0.0, lambda its: step(_LEAST, its) > wanted)
        return _Factors(_LEAST, else_, of_unrecorded=tells)
    # What no host explains is none's: the recorded steps have more to do than those behind them.
    return _Factors(_USUAL, of_unrecorded=tells and without <= _UNLIKE * wanted)


def _on_cpus(run: Measures, its: Pace) -> _Factors:
    if not its.is_slowed:
        return _AS_RECORDED
    tells, wanted = _wanted(run, its)

    def step(adds_ns: float, launching: float = 1.0, else_: float = 1.0) -> float:
        return _median_step(run, _Factors(launching, else_, adds_ns))

    if step(_ADDS_NS) <= wanted:
        part = _between(0.0, lambda its: step((1 - its) * _ADDS_NS) > wanted)
        return _Factors(adds_ns=(1 - part) * _ADDS_NS, of_unrecorded=tells)
    most = _LEAST_OF_OPERATORS
    if step(_ADDS_NS, most) <= wanted:
        operators = _between(most, lambda its: step(_ADDS_NS, its) > wanted)
        return _Factors(operators, adds_ns=_ADDS_NS, of_unrecorded=tells)
    without = step(_ADDS_NS, most, _LEAST)
    if without <= wanted:
        else_ = _between(_LEAST, lambda its: step(_ADDS_NS, most, its) > wanted)
        return _Factors(most, else_, _ADDS_NS, of_unrecorded=tells)
    alike = tells and without <= _UNLIKE * wanted
    return _Factors(most, _LEAST, _ADDS_NS, of_unrecorded=alike)


def _without_steps(run: Measures, adds_ns: int) -> _Factors:
    """By what recording adds to an operator."""
    its, measured = _Factors(adds_ns=adds_ns, of_unrecorded=True), as_measured(run)
    is_shorter = _whole(run, _faster(run, measured, its)) <= _ALIKE * _whole(run, measured)
    return its if is_shorter else _AS_RECORDED


def _wanted(run: Measures, its: Pace) -> tuple[bool, float]:
    """Whether recorded steps are those of the graph, and how long its median one should be."""
    median = _median_step(run, _AS_RECORDED)
    tells = its.is_slowed and its.recorded_ns >= _IN_STEP * median
    return tells, its.times * median if tells else median


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
        lag[its.own] = np.rint(lag[its.own] * (1 - _recorded(run, factors)))
        moves = its.transfers[0]
        moves = moves[(lag[moves] > 0) & (lag[moves] <= _LAUNCH_NS)]
        lag[moves] = np.rint(lag[moves] * factors.else_)
        return lag
    is_host = (its.graph.kind == HOST) & (lag_ns > 0)
    factor = np.where(lag_ns <= _LAUNCH_NS, factors.launching, factors.else_)
    return np.where(is_host, np.rint(lag_ns * factor), lag_ns).astype(np.int64)


def _recorded(run: Measures, factors: _Factors) -> Float64:
    """Of each edge of own work on CPUs the share that recording takes."""
    work = called(run)
    most_ns = (1 - _LEAST_OF_OPERATORS) * work.calling_ns
    added_ns = np.minimum(factors.adds_ns * work.operators, most_ns)
    added_ns += (1 - factors.launching) * (work.calling_ns - added_ns)
    share: Float64 = np.minimum(added_ns, most_ns) / np.maximum(work.length_ns, 1)
    return share


def _has_gpus(run: Measures) -> bool:
    return not run_graph(run).calls.on_cpu.all()


def _median_step(run: Measures, factors: _Factors) -> float:
    return median(step_ns(run, [_faster(run, as_measured(run), factors)]))


def _whole(run: Measures, lag_ns: Lags) -> int:
    return int(step_ns(run, [lag_ns]).mean())
