"""How much of what ranks did by themselves they were not kept from by want of a core.

The recorder notes for each step how long the rank's thread ran, and how long it waited for a core
though it could have run. Waiting is no work: whoever waits is no slower than the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.busy import host_busy
from commtrace.intervals import Intervals, covered
from commtrace.measures import measure
from commtrace.metrics.run.machines import machines
from commtrace.metrics.run.run_clock import on_run
from commtrace.metrics.run.whole import profiler_steps

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OnCore", "lags_on_cores", "on_core"]


class OnCore(NamedTuple):
    """What is left of each edge of own work without waiting for a core, as shares of its time.

    Of its time in operators, of that without, and of all: in the order of the graph's ``own``.
    """

    operators: Float64
    idle: Float64
    whole: Float64


class _Step(NamedTuple):
    """From when to when a rank's step was, on the run's clock; what its thread ran and waited."""

    begin_ns: int
    end_ns: int
    ran_ns: float
    waited_ns: float


@measure
def on_core(run: Measures) -> OnCore | None:
    """Of the ranks that communicate from CPUs; all of it where no recording says it.

    None where none says it of any rank.
    """
    times = _times(run)
    if not times:
        return None
    its = run_graph(run)
    end = its.graph.time_ns[its.graph.target[its.own]]
    start = end - its.graph.lag_ns[its.own]
    operators, idle, whole = (np.ones(its.own.size) for _ in range(3))
    rank = its.calls.rank[its.own_call]
    for one, steps in times.items():
        mine = np.flatnonzero((rank == one) & its.calls.on_cpu[its.own_call])
        left = _left(start[mine], end[mine], host_busy(run, one), steps)
        operators[mine], idle[mine], whole[mine] = left
    return OnCore(operators, idle, whole)


@measure
def lags_on_cores(run: Measures) -> Lags:
    """The lags as if each thread had had a core whenever it could run.

    The very array of those measured, where no recording says how long threads waited.
    """
    its, on = run_graph(run), on_core(run)
    if on is None:
        return its.graph.lag_ns
    lag: Lags = its.graph.lag_ns.copy()
    lag[its.own] = np.rint(lag[its.own] * on.whole)
    return lag


def _left(start: Int64, end: Int64, busy: Intervals, steps: list[_Step]) -> OnCore:
    """What is left of a rank's edges.

    Operators wait wherever the thread does; without them it may also sleep, which is neither.
    """
    in_operators, in_idle = (np.zeros(start.size) for _ in range(2))
    for step in steps:
        first, last = np.maximum(start, step.begin_ns), np.minimum(end, step.end_ns)
        last = np.maximum(first, last)
        works = covered(first, last, busy).astype(np.float64)
        idles = last - first - works
        works_ns, idles_ns = float(works.sum()), float(idles.sum())
        # It may have waited where it was woken, too, which is no part of its own work.
        waited = min(step.waited_ns, max(works_ns + idles_ns - step.ran_ns, 0.0))
        share = waited / max(step.ran_ns + waited, 1.0)
        awake = min(max(step.ran_ns + waited - works_ns, 0.0) / max(idles_ns, 1.0), 1.0)
        in_operators += works * share
        in_idle += idles * share * awake
    works = covered(start, end, busy).astype(np.float64)
    idles = end - start - works
    return OnCore(
        1 - in_operators / np.maximum(works, 1.0),
        1 - in_idle / np.maximum(idles, 1.0),
        1 - (in_operators + in_idle) / np.maximum(end - start, 1),
    )


def _times(run: Measures) -> dict[int, list[_Step]]:
    """The steps of each rank whose times on a core are known."""
    known: dict[tuple[int, int], tuple[float, float]] = {}
    for rank, machine in machines(run).items():
        for number, ran_us, waited_us, _ in machine.steps or ():
            known[rank, number] = 1e3 * ran_us, 1e3 * waited_us
    found: dict[int, list[_Step]] = {}
    steps = profiler_steps(run)
    ranks, numbers, start = map(steps.ints, ("rank", "step", "start_ns"))
    begins = on_run(run, ranks, start)
    ends = on_run(run, ranks, start + steps.ints("duration_ns"))
    columns = (each.tolist() for each in (ranks, numbers, begins, ends))
    for rank, number, begin, end in zip(*columns, strict=True):
        if (rank, number) in known:
            found.setdefault(rank, []).append(_Step(begin, end, *known[rank, number]))
    return found
