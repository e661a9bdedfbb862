"""How fast each rank's core was: the recorder timed a fixed piece of work now and then.

A core takes longer for the same where another thread, maybe of another virtual machine, has its
other half, or where its clock is low. No counter of the kernel says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, distinct
from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.machines import machines
from commtrace.metrics.run.run_clock import on_run
from commtrace.quantiles import median, medians

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["slower_core"]

_FEW = 3  # looks, which tell nothing


def slower_core(run: Measures, ranks: Collection[int], steps: Sequence[int] = ()) -> float | None:
    """How many times as long the fixed work took these ranks as others beside them, in the median.

    In some steps, as places among the graph's, by default in all. None where no recording says
    it, and where no other rank is known to be on one of their hosts: that one host is slower than
    another is its own.
    """
    times, on, asked = _by_step(run), hosts(run), set(ranks)
    beside = {on[rank] for rank in asked if rank in on}
    mine = [its for rank, its in times.items() if rank in asked]
    others = [its for rank, its in times.items() if rank not in asked and on.get(rank) in beside]
    if not mine or not others:
        return None
    their, usual = np.mean(mine, axis=0), medians(others, axis=0)
    at = list(steps) or slice(None)
    return median(their[at] / usual[at])


@measure
def _by_step(run: Measures) -> dict[int, Float64]:
    """What the work took each rank in each step of the graph, in ns."""
    its = run_graph(run)
    ends = its.end_ns.astype(np.float64)
    begins = np.append(float(its.begin_ns), ends[:-1])
    found = {}
    known = machines(run)
    for rank in distinct(its.calls.rank).tolist():  # others may be known that left no trace
        looks = (known[rank].core_speed if rank in known else None) or []
        if len(looks) >= _FEW:
            at, took = np.asarray(sorted(looks), dtype=np.int64).T
            within = begins + np.linspace(0, 1, 5)[:, None] * (ends - begins)
            found[rank] = np.interp(within, on_run(run, rank, at), took).mean(axis=0)
    return found
