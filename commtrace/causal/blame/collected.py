"""What ranks lose to the garbage that they collect in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.edits.run_edits import saved_by, scaled
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_parts, work_on_cores
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["collected_in_turn"]

_ALIKE = 1.5  # times what a rank collects in the mean: who collects most at each place does


@measure
def collected_in_turn(run: Measures, min_share: float) -> Int64:
    """What each step is shorter if nobody collects garbage, culprits aside.

    Nothing where all do it at the same places: then nobody waits for it.
    """
    collecting = own_parts(run)["garbage-collection"]
    if not collecting.any():
        return np.zeros(run_graph(run).step_ns.size, np.int64)
    lag = culprits(run, min_share).undisturbed.lag_ns
    work = work_on_cores(run, lag)
    its = np.minimum(collecting, work.own_ns[:, HOSTS])  # what culprits did too much is gone
    most = np.zeros(int(work.place.max(initial=0)) + 1, np.int64)
    np.maximum.at(most, work.place, its)
    if most[work.place].sum() <= _ALIKE * its.sum():
        return np.zeros(run_graph(run).step_ns.size, np.int64)
    wanted = work.own_ns.astype(np.float64)
    wanted[:, HOSTS] -= its
    everybody = np.ones(its.size, np.bool_)
    return saved_by(run, lag, [scaled(run, work, wanted, everybody, lag)])[:, 0]
