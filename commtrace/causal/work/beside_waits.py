"""What others compute longer since communication that waits for late ranks runs beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, distinct, spread
from commtrace.causal.work.busy import devices_compute
from commtrace.intervals import intersect, total, union
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.kernels_compared import times_beside
from commtrace.metrics.run.waits import waits
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["slowed_beside_waits_ns"]

_COMPARED = 64  # of the other ranks
_AS_MANY = 0.01  # of the kernels more or fewer


@measure
def slowed_beside_waits_ns(run: Measures, ranks: tuple[int, ...]) -> float:
    """How much longer another rank computes in the median, beyond what these do so themselves.

    A kernel of NCCL that waits keeps its multiprocessors, and is taken to slow what runs beside
    it as much as one that transfers. Where no kernels tell that, as none runs alone, too, it is
    what others compute longer than these, which run as many kernels. No replay knows it: that
    keeps others' kernels as they were.
    """
    times = times_beside(run)
    every = distinct(waits(run).ints("rank"))
    others = every[~np.isin(every, ranks)]
    if not others.size:
        return 0.0
    some = others[spread(others.size, _COMPARED)].tolist()
    mine, theirs = (median([_beside_waits_ns(run, rank) for rank in its]) for its in (ranks, some))
    beside_ns = max(theirs - mine, 0.0)
    if times > 1:
        return beside_ns * (1 - 1 / times)
    (mine, own), (theirs, kernels) = (_computes(run, its) for its in (ranks, some))
    alike = abs(kernels - own) <= _AS_MANY * own
    return min(max(theirs - mine, 0.0), beside_ns) if alike else 0.0


def _computes(run: Measures, ranks: Iterable[int]) -> tuple[float, float]:
    """How long such ranks' GPUs compute in the median, and in how many kernels."""
    each = [
        (total(devices_compute(run, rank)), len(rows_of_rank(run, "kernels", rank)))
        for rank in ranks
    ]
    time_ns, kernels = zip(*each, strict=True)
    return median(time_ns), median(kernels)


def _beside_waits_ns(run: Measures, rank: int) -> int:
    """How long a rank computes while communication waits on its GPU."""
    its = waits(run)
    arrived, waited = its.ints("arrival_ns"), its.ints("wait_ns")
    mine = (its.ints("rank") == rank) & (arrived != NULL) & (waited > 0)
    when = union(arrived[mine], arrived[mine] + waited[mine])
    return total(intersect(when, devices_compute(run, rank)))
