"""What if the stages of a pipeline had as much to do: an edit of a run's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import codes
from commtrace.causal.edits.run_edits import scaled
from commtrace.causal.replay.graph import Change, Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import OwnWork
from commtrace.causal.work.usual import mean_of
from commtrace.metrics.run.stages import stages

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["even_stages"]


def even_stages(run: Measures, lag_ns: Lags, work: OwnWork) -> Change:
    """All stages do in each step as much as they do in the mean: none of it vanishes.

    How a stage's own work is shared by its calls and its ranks stays. ``lag_ns`` are the lags of
    edits made before, ``work`` the own work with these.
    """
    calls = run_graph(run).calls
    stage_of = np.full(int(calls.rank.max()) + 1, -1)
    for number, ranks in enumerate(stages(run)):
        stage_of[[rank for rank in ranks if rank < stage_of.size]] = number
    first = calls.first
    step, stage = calls.first_step, stage_of[calls.rank[first]]
    of_stage, of_all = codes(step, stage), codes(step, stage < 0)
    mine = stage_of[calls.rank] >= 0
    wanted = np.empty((int(mine.sum()), len(work.parts)))
    for column, part in enumerate(work.parts):
        mean, own = (mean_of(part.in_step, some) for some in (of_all, of_stage))
        times = np.divide(mean, own, out=np.ones_like(own), where=own > 0)  # nothing stays nothing
        wanted[:, column] = (part.time_ns * times[calls.in_step])[mine]
    return scaled(run, work, wanted, mine, lag_ns)
