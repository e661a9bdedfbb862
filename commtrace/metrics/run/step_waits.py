"""What each rank waited for others, and they for it, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import integers
from commtrace.measures import measure
from commtrace.metrics.run.ranks import compared
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import has_steps
from commtrace.table import Column, Table

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
def step_waits(run: Measures) -> pd.DataFrame:
    """Waits suffered and caused by each rank in each step: STEP_WAITS.

    Every rank has a row for every step; what was launched outside steps is in none.
    """
    each = compared(run)
    each = each.assign(step=_steps(run, each))
    each = each[each["step"].notna()].astype({"step": "int64"})
    # A rank waits once in a kernel, however many operations share it.
    once = each.sort_values("wait_ns", ascending=False, kind="stable")
    once = once.drop_duplicates(["rank", "device", "stream", "start_ns", "duration_ns"])
    suffered = once.groupby(["rank", "step"])["wait_ns"].sum()
    caused = once.groupby(["culprit", "step"])["wait_ns"].sum()
    every = pd.MultiIndex.from_product([sorted({*each["rank"]}), sorted({*each["step"]})])
    sums = [column.reindex(every, fill_value=0) for column in (suffered, caused)]
    return STEP_WAITS.frame(
        {
            "rank": every.get_level_values(0).to_numpy(np.int64),
            "step": every.get_level_values(1).to_numpy(np.int64),
            "wait_ns": sums[0].to_numpy(np.int64),
            "caused_wait_ns": sums[1].to_numpy(np.int64),
        }
    )


def _steps(run: Measures, each: pd.DataFrame) -> pd.Series[int]:
    """The step of each row of ``compared``; of a run without steps the n-th tenth of its time."""
    if has_steps(run):
        return run.collective_columns["step"].loc[each.index]
    end = matched(run).waits["end_ns"].loc[each.index]
    at = integers(end)
    first, last = (int(at.min()), int(at.max())) if at.size else (0, 1)
    tenth = (at - first) * _PARTS // (last - first + 1)
    return pd.Series(tenth, index=each.index, dtype="Int64")
