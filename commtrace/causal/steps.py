"""Each rank's steps: where their time went, and how much of it was on the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import integers
from commtrace.causal.critical_path import critical_path
from commtrace.diagnosis import CannotLook
from commtrace.matching import on_run_clock
from commtrace.measures import measure
from commtrace.metrics.rank.devices import DEVICES, devices
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import profiler_steps
from commtrace.table import Column, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["STEP_TIMES", "path_of", "step_times_by_rank"]

_SUMS = ("compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns")

STEP_TIMES = Table(
    "steps",
    "one step on one rank; times of several devices are summed",
    (
        Column("rank", "int64", "The rank."),
        Column("step", "int64", "n of `ProfilerStep#n`."),
        Column("start_ns", "Int64", "When its host began, on the run's clock.", "ns"),
        Column("duration_ns", "int64", "How long its host took.", "ns"),
        *(Column(column.name, "Int64", column.about, "ns") for column in DEVICES.only(_SUMS)),
        Column("wait_ns", "int64", "Its waiting for other ranks in what it launched.", "ns"),
        Column(
            "critical_ns",
            "Int64",
            "Its share of the critical path of the step; null where no path is known.",
            "ns",
        ),
    ),
)


def path_of(run: Measures) -> pd.DataFrame | None:
    """The run's critical path; None where the model does not hold its communication."""
    try:
        return critical_path(run)
    except CannotLook:
        return None


@measure
def step_times_by_rank(run: Measures) -> pd.DataFrame:
    """Every step of every rank: STEP_TIMES."""
    steps = profiler_steps(run)
    rank, step = integers(steps["rank"]), integers(steps["step"])
    start, known = on_run_clock(integers(steps["start_ns"]), rank, matched(run).clock)
    rows = pd.DataFrame(
        {
            "rank": rank,
            "step": step,
            "start_ns": pd.Series(start, dtype="Int64").where(pd.Series(known)),
            "duration_ns": integers(steps["duration_ns"]),
        }
    ).drop_duplicates(["rank", "step"])
    did = devices(run, by_step=True)
    sums = did.groupby(["rank", "step"])[list(_SUMS)].sum(min_count=1).reset_index()
    waits = (
        matched(run).waits[["rank", "wait_ns"]].assign(step=run.collective_columns["step"].array)
    )
    waited = waits.dropna().groupby(["rank", "step"])["wait_ns"].sum().reset_index()
    path = path_of(run)
    rows = rows.merge(sums, on=["rank", "step"], how="left")
    rows = rows.merge(waited, on=["rank", "step"], how="left")
    if path is None:
        rows["critical_ns"] = pd.array([pd.NA] * len(rows), dtype="Int64")
    else:
        critical = path.groupby(["rank", "step"])["time_ns"].sum().rename("critical_ns")
        rows = rows.merge(critical.reset_index(), on=["rank", "step"], how="left")
        rows["critical_ns"] = rows["critical_ns"].fillna(0).astype("Int64")
    rows["wait_ns"] = rows["wait_ns"].fillna(0).astype(np.int64)
    ordered = rows.sort_values(["rank", "step"], ignore_index=True)
    return STEP_TIMES.frame(
        {column.name: integers(ordered[column.name]) for column in STEP_TIMES.columns}
    )
