"""What others compute longer since communication that waits for late ranks runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, distinct, spread
from commtrace.causal.work.busy import devices_compute
from commtrace.intervals import intersect, total, union
from commtrace.measures import measure
from commtrace.metrics.run.kernels_compared import times_beside
from commtrace.metrics.run.waits import waits
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["slowed_beside_waits_ns"]

_COMPARED = 64  # of the other ranks


@measure
def slowed_beside_waits_ns(run: Measures, ranks: tuple[int, ...]) -> float:
    """How much longer another rank computes in the median, beyond what these do so themselves.

    A kernel of NCCL that waits keeps its multiprocessors, and is taken to slow what runs beside
    it as much as one that transfers. No replay knows that: it keeps others' kernels as they were.
    """
    times = times_beside(run)
    every = distinct(waits(run).ints("rank"))
    others = every[~np.isin(every, ranks)]
    if times <= 1 or not others.size:
        return 0.0
    some = others[spread(others.size, _COMPARED)]
    mine, theirs = (
        median([_beside_waits_ns(run, rank) for rank in its]) for its in (ranks, some.tolist())
    )
    return max(theirs - mine, 0.0) * (1 - 1 / times)


def _beside_waits_ns(run: Measures, rank: int) -> int:
    """How long a rank computes while communication waits on its GPU."""
    its = waits(run)
    arrived, waited = its.ints("arrival_ns"), its.ints("wait_ns")
    mine = (its.ints("rank") == rank) & (arrived != NULL) & (waited > 0)
    when = union(arrived[mine], arrived[mine] + waited[mine])
    return total(intersect(when, devices_compute(run, rank)))
