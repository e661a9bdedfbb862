"""What a recording's steps hold: operations, kernels by name, ranks; in the mean of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, integers
from commtrace.causal.steps import step_times_by_rank
from commtrace.comparing.kinds import Operation, kinds_of_rows
from commtrace.measures import measure
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["counts", "ranks", "work_by_name"]


@measure
def counts(run: Measures, steps: tuple[int, ...]) -> Mapping[Operation, tuple[float, float]]:
    """How many operations of each kind a step has, and how long their transfers take, in ns."""
    kinds, code = kinds_of_rows(run)
    table = pd.DataFrame(
        {
            "kind": code,
            "operation": integers(matched(run).matches["operation"]),
            "step": integers(run.collectives["step"]),
        }
    )
    first = table[table["step"].isin(steps)].drop_duplicates("operation")
    times = matched(run).operations.set_index("operation")["transfer_ns"]
    took = integers(first["operation"].map(times).astype("Int64"))
    each = first.assign(time=np.where(took == NULL, 0, took)).groupby("kind")["time"]
    summed = each.agg(["count", "sum"]) / max(len(steps), 1)
    return {
        kinds[number]: (float(count), float(time)) for number, count, time in summed.itertuples()
    }


@measure
def work_by_name(
    run: Measures, steps: tuple[int, ...]
) -> Mapping[tuple[int, str], tuple[float, float]]:
    """How many kernels of each name a rank's step has, and how long; on a CPU operators."""
    with_kernels = run.kernels["rank"].unique()
    on_cpu = run.ops[~run.ops["rank"].isin(with_kernels)]
    return {
        (int(rank), str(name)): (float(count), float(time))
        for table in (run.kernels, on_cpu)
        for (rank, name), count, time in _by_name(table, steps).itertuples()
    }


def _by_name(table: pd.DataFrame, steps: tuple[int, ...]) -> pd.DataFrame:
    mine = table[table["step"].isin(steps) & (table["kind"].astype(object) == "compute")]
    each = mine.groupby(["rank", mine["name"].astype(object)])["duration_ns"]
    return each.agg(["count", "sum"]) / max(len(steps), 1)


@measure
def ranks(run: Measures, steps: tuple[int, ...]) -> Mapping[int, Mapping[str, float]]:
    """What each rank's steps have in the mean: the columns of STEP_TIMES; unknown ones lack."""
    table: Any = step_times_by_rank(run)
    mine = table[table["step"].isin(steps)].drop(columns=["step", "start_ns", "critical_ns"])
    means = mine.groupby("rank").mean()
    return {
        int(rank): {str(name): float(value) for name, value in row.dropna().items()}
        for rank, row in means.iterrows()
    }
