"""What stragglers cost a job: replays of its graph with some operations as they were.

The conventions, of Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis", OSDI'25:

- An operation ends its own duration after the last of its group has begun. In a group are a send
  and its recv, the data ranks of a stage (params-all-gather, grads-reduce-scatter), the first and
  the last stage (embedding-grads-all-reduce), everybody (optimizer-clip-main-grad).
- It begins its launch delay after the last that it waits for has ended.
- ``launch_slowdown``: mean step time as measured over that without launch delays.
- ``blocking_slowdown`` (S): mean step time without launch delays over the ideal one.
- Ideal: own durations are the mean (AVERAGED) or the median (communication) of all operations
  of their type, over ranks, stages and steps.
- ``blocking_decompose_by_…`` (S of a part): all is ideal but the part. It may lie below 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from benchmarks.straggler_analysis.job import DURATION, LAUNCH, Job
from commtrace.arrays import Bool, Float64, Int64
from commtrace.causal.replay.graph import replay

__all__ = ["Numbers", "slowdowns"]

AVERAGED = ("forward-compute", "backward-compute", "gc", "optimizer")

Numbers = dict[tuple[str, ...], float]
"""Seconds and ratios, each by the names that lead to it in a ``result-*.json``."""


def slowdowns(job: Job) -> Numbers:
    """Step times and slowdowns of the job, of each step and by data rank, stage and type."""
    measured, kind = job.graph.lag_ns, job.graph.kind
    no_delay = np.where(kind == LAUNCH, 0, measured)
    ideal = no_delay.copy()
    ideal[kind == DURATION] = _ideal(job)
    parts = dict(_parts(job.operations))
    lags = np.repeat(ideal[:, None], 3 + len(parts), axis=1)
    lags[:, 0], lags[:, 1] = measured, no_delay
    for column, rows in enumerate(parts.values(), start=3):
        edges = np.flatnonzero(kind == DURATION)[rows]
        lags[edges, column] = measured[edges]
    seconds = _step_times(job, replay(job.graph, lags))
    measured_s, no_delay_s, ideal_s = seconds[:, :3].T
    numbers: Numbers = {
        ("launch_slowdown",): measured_s.mean() / no_delay_s.mean(),
        ("blocking_slowdown",): no_delay_s.mean() / ideal_s.mean(),
    }
    per_step: dict[tuple[str, ...], Float64] = {
        ("step_t_base",): measured_s,
        ("step_t_nodelay",): no_delay_s,
        ("step_t_noblk",): ideal_s,
        ("launch_step_slowdown",): measured_s / no_delay_s,
        ("blocking_step_slowdown",): no_delay_s / ideal_s,
    }
    for (kind_of_part, part), part_s in zip(parts, seconds[:, 3:].T, strict=True):
        numbers[kind_of_part, part] = part_s.mean() / ideal_s.mean()
        per_step[f"{kind_of_part}_per_step", part] = part_s / ideal_s
    for (name, *part_of), values in per_step.items():
        numbers |= {(name, str(s), *part_of): v for s, v in zip(job.steps, values, strict=True)}
    return numbers


def _ideal(job: Job) -> Int64:
    """Every operation's own duration, were there no stragglers, in ns."""
    durations = pd.Series(job.graph.lag_ns[job.graph.kind == DURATION])
    by_type = durations.groupby(job.operations["optype"])
    mean, median = by_type.transform("mean"), by_type.transform("median")
    ideal = mean.where(job.operations["optype"].isin(AVERAGED), median)
    return ideal.round().to_numpy(dtype=np.int64)


def _parts(operations: pd.DataFrame) -> Iterator[tuple[tuple[str, str], Bool]]:
    """The rows of each data rank, stage and type; sends and their recvs are one type."""
    for column in ("dp_rank", "stage", "optype"):
        part = operations[column].astype(str)
        part = part.str.replace("-(?:send|recv)$", "-pp-comm", regex=True)
        for name in sorted(part.unique()):
            yield (f"blocking_decompose_by_{column}", name), (part == name).to_numpy()


def _step_times(job: Job, time: Int64) -> Float64:
    """Seconds from each step's beginning to its last end, steps × edits."""
    rows, begun = len(job.operations), time[-job.steps.size :]
    ended = begun.copy()
    np.maximum.at(ended, job.step, time[rows : 2 * rows])
    seconds: Float64 = (ended - begun) / 1e9
    return seconds
