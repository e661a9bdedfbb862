"""What each rank waited for others, and they for it, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64, distinct, sums
from commtrace.measures import measure
from commtrace.metrics.run.ranks import Compared, compared
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import has_steps
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["STEP_WAITS", "step_waits"]

_PARTS = 10  # of a run without steps, as of its critical path

STEP_WAITS = Table(
    "step_waits",
    "one rank in one step, among the ranks and steps in which any wait is known",
    (
        Column("rank", "int64", "The rank."),
        Column("step", "int64", "n of `ProfilerStep#n`; of a run without steps its n-th tenth."),
        Column("wait_ns", "int64", "Its waiting for others to arrive.", "ns"),
        Column("caused_wait_ns", "int64", "The others' waiting for it to arrive.", "ns"),
    ),
)


@measure
def step_waits(run: Measures) -> Rows:
    """Waits suffered and caused by each rank in each step: STEP_WAITS.

    Every rank has a row for every step; what was launched outside steps is in none.
    """
    each = compared(run)
    step = _steps(run, each)
    mine = np.flatnonzero(step != NULL)
    ranks, steps = distinct(each.rank[mine]), distinct(step[mine])
    once = each.once(mine)
    caused = once[np.isin(each.culprit[once], ranks)]

    def by_rank_and_step(rank: Int64, waited: Int64) -> Int64:
        place = np.searchsorted(ranks, rank) * steps.size + np.searchsorted(steps, step[waited])
        return sums(place, each.wait_ns[waited], ranks.size * steps.size)

    return STEP_WAITS.rows(
        {
            "rank": np.repeat(ranks, steps.size),
            "step": np.tile(steps, ranks.size),
            "wait_ns": by_rank_and_step(each.rank[once], once),
            "caused_wait_ns": by_rank_and_step(each.culprit[caused], caused),
        }
    )


def _steps(run: Measures, each: Compared) -> Int64:
    """The step of each that was compared; of a run without steps the n-th tenth of its time."""
    if has_steps(run):
        return run.rows("collectives", each.at).ints("step")
    end = matched(run).waits.ints("end_ns")[each.at]
    first, last = (int(end.min()), int(end.max())) if end.size else (0, 1)
    return (end - first) * _PARTS // (last - first + 1)
