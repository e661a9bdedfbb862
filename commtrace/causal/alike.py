"""What all ranks do alike, at the same time, so that nobody waits for another; and without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int32, Int64
from commtrace.causal.edits.run_edits import factors, scaled
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work, work_with
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Alike", "alike", "without"]

_AS_USUAL = 0.5  # of what is typical
_ALIKE = 1.5  # times: by so much scatters what takes ranks as long


class Alike(Struct, frozen=True, eq=False):
    """A part of the own work of ranks' hosts, ``part_ns`` of each call.

    ``steps_ns`` is what each of ``ranks`` takes in each step (ranks × steps), as far as it is
    typical of them, and ``all_ns`` all of it. A run without steps has its tenths.
    """

    ranks: Int32
    steps_ns: Float64
    all_ns: Float64
    part_ns: Int32 | Int64

    @property
    def who(self) -> tuple[int, ...]:
        """The ranks that take half of what is typical or more: who takes so much does it, too."""
        each = self.steps_ns.sum(axis=1)
        return tuple(self.ranks[each >= _AS_USUAL * median(each)].tolist())


def alike(run: Measures, part_ns: Int32 | Int64) -> Alike:
    """A part as far as the (lower) median rank takes as long for it in the same step.

    Of a rank that takes longer only what is typical counts: the rest delays the others, and is a
    straggler's. CannotLook as ``run_graph``.
    """
    ranks, steps = run_graph(run).by_cell(part_ns)
    typical = np.sort(steps, axis=0)[(ranks.size - 1) // 2]
    return Alike(ranks, np.where(steps <= _ALIKE * typical, steps, typical), steps, part_ns)


def without(run: Measures, its: Alike, lag_ns: Lags) -> Lags:
    """These lags, without what is typical of the part, of every rank.

    Of what an edit made shorter, the part is as large as it was.
    """
    calls = run_graph(run).calls
    own, work = own_work(run).own_ns[:, HOSTS], work_with(run, lag_ns)
    part = its.part_ns.astype(np.float64)
    share = np.divide(its.steps_ns, its.all_ns, out=np.zeros_like(its.all_ns), where=its.all_ns > 0)
    left = part * factors(own, work.own_ns[:, HOSTS].astype(np.float64))
    wanted = work.own_ns.astype(np.float64)
    wanted[:, HOSTS] -= np.minimum(part * share[run_graph(run).cells[1]], left)
    everyone = np.ones(calls.rank.size, np.bool_)
    return changed(lag_ns, scaled(run, work, wanted, everyone, lag_ns, HOSTS))
