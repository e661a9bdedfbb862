"""What a recording's steps hold: operations, kernels by name, ranks; in the mean of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import codes, first_rows, sums
from commtrace.causal.steps import step_times_by_rank
from commtrace.comparing.kinds import Operation, kinds_of_rows
from commtrace.comparing.shapes import shapes
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import ranks_of
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Work", "counts", "ranks", "work"]


@measure
def counts(run: Measures, steps: tuple[int, ...]) -> Mapping[Operation, tuple[float, float]]:
    """How many operations of each kind a step has, and how long their transfers take, in ns."""
    kinds, code = kinds_of_rows(run)
    row = np.flatnonzero(np.isin(run.rows("collectives").ints("step"), steps))
    row = row[first_rows(codes(operation_of(run)[row]))]  # the first of each operation's
    time = matched(run).operations.ints("transfer_ns")[operation_of(run)[row]]
    count = np.bincount(code[row])
    each = zip(count.tolist(), sums(code[row], time.clip(min=0), count.size).tolist(), strict=True)
    whole = max(len(steps), 1)
    return {kinds[at]: (n / whole, took / whole) for at, (n, took) in enumerate(each) if n}


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
        key: mean
        for its, shape in ((kernels, known.kernels), (ops.take(on_cpu), known.ops[on_cpu]))
        for key, mean in _by_name(its, shape, steps)
    }


def _by_name(
    its: Rows, shape: np.ndarray[Any, np.dtype[np.object_]], steps: tuple[int, ...]
) -> Iterator[tuple[tuple[int, Work], tuple[float, float]]]:
    """What ran in these steps, by rank, name and shape; how much of it a step has in the mean."""
    mine = its.coded("kind").being("compute") & its.coded("name").known
    mine &= np.isin(its.ints("step"), steps)
    its, shapes = its.take(mine), Coded.of([one or None for one in shape[mine].tolist()])
    rank, name = its.ints("rank"), its.coded("name")
    number = codes(rank, name, shapes)
    first, count = first_rows(number), np.bincount(number)
    time = sums(number, its.ints("duration_ns"), count.size)
    means = [(each / max(len(steps), 1)).tolist() for each in (count, time)]
    for at, row in enumerate(first.tolist()):
        its_work = Work(str(name.at(row)), shapes.at(row))
        yield (int(rank[row]), its_work), (means[0][at], means[1][at])


@measure
def ranks(run: Measures, steps: tuple[int, ...]) -> Mapping[int, Mapping[str, float]]:
    """What each rank's steps have in the mean: the columns of STEP_TIMES; unknown ones lack."""
    table: Any = step_times_by_rank(run).frame()
    mine = table[table["step"].isin(steps)].drop(columns=["step", "start_ns", "critical_ns"])
    means = mine.groupby("rank").mean()
    return {
        int(rank): {str(name): float(value) for name, value in row.dropna().items()}
        for rank, row in means.iterrows()
    }
