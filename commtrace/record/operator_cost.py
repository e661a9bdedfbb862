"""What recording adds to the time of an operator, for programs of which all is recorded."""

from __future__ import annotations

import time

import torch

from commtrace.record.extras import new_profiler
from commtrace.record.own_profiler import OWN

__all__ = ["recording_adds_ns"]

_CALLS, _ROUNDS = 1_000, 3
_EACH = 2  # operators: a selection makes a view


def recording_adds_ns() -> int | None:
    """At least, on a CPU, as in any recording of commtrace's.

    A long one also takes new memory all the time. Two short operators are called with a profiler,
    whose profile is kept by nobody, and without. None where the program has the profiler.
    """
    if OWN.active:
        return None
    _round_ns()
    plain_ns = _least_ns()
    profiler = new_profiler(activities=[torch.profiler.ProfilerActivity.CPU])
    with OWN.not_now():
        profiler.prepare_trace()
        profiler.start_trace()
        recorded_ns = _least_ns()
        profiler.stop_trace()
    return max(recorded_ns - plain_ns, 0) // (_EACH * _CALLS)


def _least_ns() -> int:
    return min(_round_ns() for _ in range(_ROUNDS))


def _round_ns() -> int:
    few = torch.zeros(2, 2)
    begun = time.perf_counter_ns()
    for _ in range(_CALLS):
        few.select(0, 1)
    return time.perf_counter_ns() - begun
