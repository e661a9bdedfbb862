"""What if what is gathered were not: each rank works on the part that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.json import decode

from commtrace.arrays import Bool, Float64, distinct
from commtrace.causal.edits.doing_less import doing_less_behind
from commtrace.causal.edits.not_issued import not_issued
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.builder import DEVICES, HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.worked_on import worked_on
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.first_operators import first_rank, numbers_in

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["on_shards"]

_NEARLY = 0.9  # of the elements: a language model's last token has no next one


def on_shards(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These gathers (a flag for each call) are not made, and what works on all works on a part.

    What that takes is known from the shapes of the first rank's operators: it comes before the next
    call of each rank. Without shapes it stays as it is.
    """
    computing = np.where(run_graph(run).calls.on_cpu, HOSTS, DEVICES)
    lag = not_issued(run, which, lag_ns)
    return doing_less_behind(run, _less_ns(run, which), lag, computing)


def _less_ns(run: Measures, which: Bool) -> Float64:
    """How much less time the work behind each of these gathers takes."""
    calls, first = run_graph(run).calls, first_rank(run)
    rows = run.rows("collectives", calls.row)
    many, size = elements(rows), rows.ints("group_size")
    less = np.zeros(which.size)
    steps = worked_on(run, (first,)).get(first, {}).values()
    for one in distinct(many[which]).tolist():
        mine = which & (many == one)
        count = int((mine & (calls.rank == first)).sum())
        time_ns = sum(
            done.time_ns
            for work in steps
            for what, done in work.items()
            if _works_on(what.shapes, one)
        )
        less[mine] = time_ns / max(count, 1) * (1 - 1 / np.maximum(size[mine], 1))
    return less


def _works_on(shapes: str, elements_of: int) -> bool:
    """Whether an input has nearly as many elements."""
    return any(_NEARLY * elements_of <= numbers_in(its) <= elements_of for its in decode(shapes))
