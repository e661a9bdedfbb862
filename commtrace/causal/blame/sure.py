"""What ranks surely do longer by themselves: run no operator, or operators that others do not run.

Processes that share cores compute the same longer by turns, and who sleeps leaves its core to
others, so that what all compute hides what one does besides. Where all compute what they have in
common for as long as they do in the mean, it does not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import as_measured, of_ranks, saved_by, scaled
from commtrace.causal.replay.graph import Change, Lags, changed
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.extra import extra_ns
from commtrace.causal.work.on_core import lags_on_cores
from commtrace.causal.work.segments import OwnWork, idle_ns, own_work, work_on_cores
from commtrace.causal.work.usual import Usual
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["computing_alike", "more_surely_ns", "saved_surely", "wanted_ns", "without_more"]


def more_surely_ns(run: Measures, ranks: Collection[int] = ()) -> Float64:
    """How much longer each call's host does so than is typical of other ranks there: may be < 0.

    Of several ``ranks`` together, if they are given, than is typical of the rest.
    """
    more = _more(run)
    if len(ranks) > 1:
        sure, mine, more = _sure(run), of_ranks(run, ranks), more.copy()
        more[mine] = sure.time_ns[mine] - sure.of_the_rest(mine, mine)
    return more


@measure
def _more(run: Measures) -> Float64:
    sure = _sure(run)
    return np.asarray(sure.time_ns - sure.of_others())


@measure
def _sure(run: Measures) -> Usual:
    return Usual(run_graph(run).calls, (idle_ns(run) + extra_ns(run)).astype(np.int64))


def without_more(run: Measures, ranks: Collection[int], lag_ns: Lags, work: OwnWork) -> Change:
    """The ranks' hosts do so as long as is typical of the rest; what else they compute stays.

    ``lag_ns`` are the lags of edits made before, ``work`` the own work with these.
    """
    mine = of_ranks(run, ranks)
    return scaled(run, work, wanted_ns(run, work, ranks)[mine], mine, lag_ns)


def wanted_ns(run: Measures, work: OwnWork, ranks: Collection[int] = ()) -> Float64:
    """The own work of calls without ``more_surely_ns``: calls × 2."""
    wanted = work.own_ns.astype(np.float64)
    wanted[:, HOSTS] = np.maximum(wanted[:, HOSTS] - more_surely_ns(run, ranks), 0)
    return wanted


def computing_alike(run: Measures, ranks: Collection[int], lag_ns: Lags, work: OwnWork) -> Lags:
    """These lags, if each of the ranks computes what they have in common as long as in the mean.

    That is the mean of the ranks at the same place of a step.
    """
    mine = of_ranks(run, ranks)
    computes = (own_work(run).own_ns[:, HOSTS] - _sure(run).time_ns)[mine]
    place = work.place[mine]
    mean = (np.bincount(place, computes) / np.maximum(np.bincount(place), 1))[place]
    wanted = work.own_ns[mine].astype(np.float64)
    wanted[:, HOSTS] = np.maximum(wanted[:, HOSTS] + mean - computes, 0)
    return changed(lag_ns, scaled(run, work, wanted, mine, lag_ns))


def saved_surely(run: Measures, ranks: Collection[int], lag_ns: Lags) -> Int64:
    """What each step is shorter without what these do longer, whatever all compute.

    The most of what that saves as measured, and with these lags, those without waits for cores.
    """
    each = [saved_by(run, lag_ns, [without_more(run, ranks, lag_ns, work_on_cores(run, lag_ns))])]
    measured = as_measured(run)
    if lag_ns is undisturbed(run) and lags_on_cores(run) is not measured:
        each.append(saved_by(run, measured, [without_more(run, ranks, measured, own_work(run))]))
    return max((steps[:, 0] for steps in each), key=np.sum)
