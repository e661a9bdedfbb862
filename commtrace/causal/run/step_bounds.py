"""When the steps of a run begin, and what each ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, Int32, Int64, distinct
from commtrace.causal.replay.graph import Graph
from commtrace.causal.run.builder import Builder
from commtrace.causal.run.calls import Calls
from commtrace.metrics.rank.rows_of import measured_ranks
from commtrace.metrics.rank.spans import rank_spans
from commtrace.metrics.run.run_clock import on_run
from commtrace.metrics.run.whole import profiler_steps

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["begin_ns", "steps_of_run"]

_PARTS = 10  # of a run without steps


def steps_of_run(
    made: Builder, graph: Graph, node: Int32, ended: Int32
) -> tuple[tuple[int, ...], tuple[Int32, ...], int]:
    """The nodes that each step ends with, and when the last one was over.

    On CPUs the last one, and all without steps, end with joint operations. What GPUs and their
    hosts do behind the last of these is in the way of a next step as it is of all before.
    """
    last, step = made.step_ends()
    nodes, numbers, mine = node[last], distinct(step), made.calls
    if numbers.size and not mine.on_cpu.any():
        ends = tuple(nodes[step == number] for number in numbers)
        return tuple(numbers.tolist()), ends, int(graph.time_ns[ends[-1]].max())
    if numbers.size:
        within = mine.step <= numbers[-1]
        inside = ended if within.all() or (mine.step == NULL).all() else ended[within]
        ends = *(nodes[step == number] for number in numbers[:-1]), inside
        over = graph.time_ns[nodes[step == numbers[-1]]].max()
        return tuple(numbers.tolist()), ends, int(over)
    order = np.argsort(graph.time_ns[ended], kind="stable")
    tenths = np.array_split(order, max(min(_PARTS, order.size), 1))
    over = int(graph.time_ns[ended].max())
    return tuple(range(len(tenths))), tuple(ended[tenth] for tenth in tenths), over


def begin_ns(run: Measures, mine: Calls, first_end_ns: int) -> int:
    """When the first step began on its last rank, and its devices were done with what was before.

    But not where that is behind its end.
    """
    steps = profiler_steps(run)
    if not len(steps):
        return int(mine.launch_ns.min(initial=np.iinfo(np.int64).max))
    first = steps.take(steps.ints("step") == steps.ints("step").min())
    rank, start = first.ints("rank"), first.ints("start_ns")
    begins = on_run(run, rank, start)
    behind = on_run(run, rank, np.maximum(start, _behind_ns(run, rank, mine)))
    return int(np.where(behind < first_end_ns, behind, begins).max())


def _behind_ns(run: Measures, rank: Int64, mine: Calls) -> Int64:
    """When ranks' GPUs were done with what was launched before the steps, as hosts run ahead.

    NULL of those that use none.
    """
    found, with_gpu = np.full(rank.size, NULL), distinct(mine.rank[~mine.on_cpu])
    for ranks in measured_ranks(run):
        behind: Any = rank_spans(run, *ranks)["behind_ns"]
        its = np.flatnonzero(np.isin(rank, ranks) & np.isin(rank, with_gpu))
        found[its] = behind[np.searchsorted(ranks, rank[its])]
    return found
