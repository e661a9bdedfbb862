"""Reductions of gradients that begin when backward is over: nothing is left to run beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64, codes, least, most
from commtrace.metrics.rank.exposed_calls import rows_of_operation
from commtrace.metrics.rank.phases import launching_threads, phases
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.whole import has_steps
from commtrace.quantiles import median
from commtrace.rules._backward import REDUCTIONS, of_backward
from commtrace.rules._one_dimension import of_one_dimension, of_same_groups

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["ONE_BUCKET", "in_one_bucket", "largest_call", "of_gradients_late", "starts_late"]

ONE_BUCKET = 0.9
"""Of a step's bytes: nothing is left to run beside that one call."""
_GRADIENTS_BYTES = 1_000_000  # of a step
_REST = 0.05  # of backward: what the last gradients are made with, and packed


def starts_late(run: Measures, rows: Int64) -> bool:
    """Whether next to nothing is left of backward when the first of a step's calls is made.

    That is, of what other threads than the steps' own have computed in the step, as backward has
    its own on GPUs, or of what the calls' thread has; the first rank tells.
    """
    calls = run.rows("collectives", rows)
    if not rows.size or not has_steps(run):
        return False
    rank = int(calls.ints("rank")[0])
    mine = (calls.ints("rank") == rank) & (calls.ints("step") != NULL)
    mine &= calls.ints("launch_ns") != NULL
    kernels = rows_of_rank(run, "kernels", rank)
    computes = of_backward(kernels, rows_of_rank(run, "steps", rank))
    if not computes.any():
        computes = kernels.coded("kind").being("compute") & (kernels.ints("launch_ns") != NULL)
        its_thread = launching_threads(run).values()[rows[mine]]
        computes &= np.isin(kernels.ints("thread"), its_thread)
    kernels = kernels.take(computes & np.isin(kernels.ints("step"), calls.ints("step")[mine]))
    numbers, of = np.unique(calls.ints("step")[mine], return_inverse=True)
    first = least(of, calls.ints("launch_ns")[mine], numbers.size)
    late = kernels.ints("launch_ns") > first[np.searchsorted(numbers, kernels.ints("step"))]
    time_ns = kernels.ints("duration_ns")
    return bool(time_ns[late].sum() <= _REST * time_ns.sum()) and time_ns.size > 0


def of_gradients_late(run: Measures, op: str) -> bool:
    """Whether an operation is a program's own reduction of its gradients, when backward is over.

    Of as many bytes as gradients have, and with nothing reduced while backward runs: else it is of
    something else, as the norm of what was reduced.
    """
    if op not in REDUCTIONS:
        return False
    calls = run.rows("collectives")
    rows = of_one_dimension(run, rows_of_operation(run, op))
    reduces = calls.coded("op").where(REDUCTIONS.__contains__) & phases(run).being("backward")
    reduces &= of_same_groups(run, rows)
    if reduces.any():
        return False
    its = run.rows("collectives", rows)
    size, step = its.ints("size_bytes").clip(min=0), codes(its.ints("rank"), its.ints("step"))
    if not rows.size or median(np.bincount(step, size)) < _GRADIENTS_BYTES:
        return False
    return starts_late(run, rows)


def in_one_bucket(run: Measures, op: str) -> bool:
    """Whether an operation reduces nearly all of a step in one call, so that none runs beside it.

    That hides nothing however few its bytes are.
    """
    if op not in REDUCTIONS:
        return False
    return largest_call(run.rows("collectives", rows_of_operation(run, op)))[0] > ONE_BUCKET


def largest_call(calls: Rows) -> tuple[float, float]:
    """What share of a step's bytes its largest call sends, and how much that is, in the median."""
    its = calls.take((calls.ints("size_bytes") > 0) & (calls.ints("step") != NULL))
    if not len(its):
        return 0.0, 0.0
    step, size = codes(its.ints("rank"), its.ints("step")), its.ints("size_bytes")
    largest = most(step, size, int(step.max()) + 1)
    return median(largest / np.bincount(step, size)), median(largest)
