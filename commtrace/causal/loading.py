"""How long all ranks alike wait for their data, and the run without that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int32
from commtrace.causal.edits.run_edits import factors, scaled
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_intervals, own_parts, own_work, work_with
from commtrace.intervals import Intervals
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Loading", "loading", "loading_when", "without_loading"]


_ALIKE = 1.5  # times: by so much the times scatter that workers need alike


class Loading(Struct, frozen=True, eq=False):
    """What ranks load in each step (ranks × steps): what is typical of them, and ``all_ns``.

    A run without steps has its tenths.
    """

    ranks: Int32
    steps_ns: Float64
    all_ns: Float64


@measure
def loading(run: Measures) -> Loading:
    """What each rank loads in each step, as far as the (lower) median rank loads alike.

    Of a rank that loads longer only what is typical counts: the rest delays the others, and is a
    straggler's. CannotLook as ``run_graph``.
    """
    ranks, steps = run_graph(run).by_cell(own_parts(run)["loader"])
    typical = np.sort(steps, axis=0)[(ranks.size - 1) // 2]
    return Loading(ranks, np.where(steps <= _ALIKE * typical, steps, typical), steps)


def loading_when(run: Measures, rank: int) -> Intervals:
    """When a rank was under a data loader's label, on the run's clock."""
    return own_intervals(run, rank)["loader"]


def without_loading(run: Measures, lag_ns: Lags) -> Lags:
    """These lags, with every rank's data there at once, as far as ``loading``.

    Of what an edit made shorter, loading is as large a part as it was.
    """
    calls, its = run_graph(run).calls, loading(run)
    own, work = own_work(run).own_ns[:, HOSTS], work_with(run, lag_ns)
    loads = own_parts(run)["loader"].astype(np.float64)
    share = np.divide(its.steps_ns, its.all_ns, out=np.zeros_like(its.all_ns), where=its.all_ns > 0)
    left = loads * factors(own, work.own_ns[:, HOSTS].astype(np.float64))
    wanted = work.own_ns.astype(np.float64)
    wanted[:, HOSTS] -= np.minimum(loads * share[run_graph(run).cells[1]], left)
    everyone = np.ones(calls.rank.size, np.bool_)
    return changed(lag_ns, scaled(run, work, wanted, everyone, lag_ns, HOSTS))
