"""In which steps of a run ranks can be compared: they may have recorded unlike ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, among, least, most
from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import measure
from commtrace.metrics.run.whole import profiler_steps

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["of_unlike_steps", "steps_in_common"]

_MOST = 0.5


@measure
def steps_in_common(run: Measures, ranks: tuple[int, ...]) -> Bool:
    """Of each step of the graph whether some of these ranks recorded it, and some of the others.

    Every one where they have no two in common: not all number their steps, or not alike.
    """
    steps = profiler_steps(run)
    number, mine = steps.ints("step"), np.isin(steps.ints("rank"), ranks)
    known = run_graph(run).steps
    both = among(known, number[mine]) & among(known, number[~mine])
    return both if both.sum() > 1 else np.ones_like(both)


@measure
def of_unlike_steps(run: Measures) -> bool:
    """Whether most operations are of a step of one number on one rank, of another on another.

    Then steps of one number are not one step: ranks recorded unlike ones, or count them apart.
    """
    calls = run_graph(run).calls
    step, operation = calls.step, calls.operation
    known = step != NULL
    size = int(operation.max(initial=-1)) + 1
    first, last = (of(operation[known], step[known], size) for of in (least, most))
    shared = np.bincount(operation[known], minlength=size) > 1
    return bool((first < last)[shared].mean() > _MOST) if shared.any() else False
