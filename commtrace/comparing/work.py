"""What a recording's steps hold: operations, kernels by name, ranks; in the mean of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, integers
from commtrace.causal.steps import step_times_by_rank
from commtrace.comparing.kinds import Operation, kinds_of_rows
from commtrace.comparing.shapes import shapes
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import ranks_of
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Work", "counts", "ranks", "work"]


@measure
def counts(run: Measures, steps: tuple[int, ...]) -> Mapping[Operation, tuple[float, float]]:
    """How many operations of each kind a step has, and how long their transfers take, in ns."""
    kinds, code = kinds_of_rows(run)
    table = pd.DataFrame(
        {
            "kind": code,
            "operation": integers(matched(run).matches["operation"]),
            "step": run.rows("collectives").ints("step"),
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


_WORK = ("rank", "name", "kind", "step", "duration_ns")


class Work(NamedTuple):
    """Kernels, or on a CPU operators, of one name and shape; None is a shape that is unknown."""

    name: str
    shape: str | None


@measure
def work(run: Measures, steps: tuple[int, ...]) -> Mapping[tuple[int, Work], tuple[float, float]]:
    """How many kernels of each name and shape a rank's step has, and how long, in ns.

    On a CPU operators. What runs first comes first.
    """
    known = shapes(run)
    kernels, ops = run.rows("kernels").only(*_WORK), run.rows("ops").only(*_WORK)
    on_cpu = ~np.isin(ops.ints("rank"), [*ranks_of(run, "kernels")])
    return {
        (int(rank), Work(str(name), shape)): (float(count), float(time))
        for table, its in ((kernels, known.kernels), (ops.take(on_cpu), known.ops[on_cpu]))
        for (rank, name, shape), count, time in _by_name(table.frame().assign(shape=its), steps)
    }


def _by_name(table: pd.DataFrame, steps: tuple[int, ...]) -> Iterator[Any]:
    mine = table[table["step"].isin(steps) & (table["kind"].astype(object) == "compute")]
    keys = ["rank", mine["name"].astype(object), mine["shape"].fillna("")]
    each = mine.groupby(keys, sort=False)["duration_ns"].agg(["count", "sum"])
    for (rank, name, shape), count, time in (each / max(len(steps), 1)).itertuples():
        yield (rank, name, shape or None), count, time


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
