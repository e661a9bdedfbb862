"""One step of a side that is as long as its steps are in the mean: for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.steps import step_times_by_rank
from commtrace.comparing.sample import sample

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["TypicalStep", "typical_step"]


@dataclass(frozen=True, eq=False)
class TypicalStep:
    """A step, when it was on its run's clock, and in which ``recording`` of its side, from 1 on."""

    measures: Measures
    recording: int
    step: int
    start_ns: int
    end_ns: int


def typical_step(side: Sequence[tuple[Measures, tuple[int, ...]]]) -> TypicalStep | None:
    """Of the steps that count the one nearest to their mean.

    None if there are none, and where ranks have no clock in common.
    """
    lengths = [
        (recording, run, step, length)
        for recording, (run, counting) in enumerate(side, 1)
        for step, length in zip(sample(run).steps, sample(run).step_ns.tolist(), strict=True)
        if step in counting
    ]
    if not lengths:
        return None
    mean = np.mean([length for *_, length in lengths])
    recording, run, step, length = min(lengths, key=lambda its: abs(its[3] - mean))
    if sample(run).lacking is None:
        its = run_graph(run)
        end = int(its.end_ns[its.steps.index(step)])
        return TypicalStep(run, recording, step, end - length, end)
    table = step_times_by_rank(run)
    starts, ends = table.take(table.ints("step") == step).when()
    if (starts == NULL).any():
        return None
    return TypicalStep(run, recording, step, int(starts.min()), int(ends.max()))
