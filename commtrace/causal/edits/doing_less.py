"""What if ranks did less before their calls, or behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int64, in_order
from commtrace.causal.edits.run_edits import scaled
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["doing_less", "doing_less_behind"]


def doing_less(run: Measures, less_ns: Float64, lag_ns: Lags, column: int | Int64 = HOSTS) -> Lags:
    """The hosts do so much less before each call; or what another ``column`` of work is of."""
    work, mine = own_work(run), less_ns > 0
    wanted = work.own_ns[mine].astype(np.float64)
    columns = np.broadcast_to(column, less_ns.shape)[mine]
    wanted[np.arange(columns.size), columns] -= less_ns[mine]
    return changed(lag_ns, scaled(run, work, wanted.clip(min=0), mine, lag_ns))


def doing_less_behind(
    run: Measures, less_ns: Float64, lag_ns: Lags, column: int | Int64 = HOSTS
) -> Lags:
    """The same behind each call, before the next one of its rank."""
    calls = run_graph(run).calls
    order = in_order(calls.rank.astype(np.int64), calls.launch_ns)
    here, behind = order[:-1], order[1:]
    same = calls.rank[here] == calls.rank[behind]
    before = np.zeros(less_ns.size)
    before[behind[same]] = less_ns[here[same]]
    return doing_less(run, before, lag_ns, column)
