"""What if nobody waited too early, or in the wrong queue: edits of joins and of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64
from commtrace.causal.replay.graph import DROPPED, Lags
from commtrace.causal.run.builder import JOIN, QUEUE
from commtrace.causal.run.run_graph import run_graph

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["unqueued", "waiting_later"]


def waiting_later(run: Measures, behind_ns: Int64, lag_ns: Lags) -> Int64:
    """Who waits for a call does so much of the work behind the wait before it.

    ``behind_ns`` has a time for each call, 0 where its wait stays.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.astype(np.int64)
    joins = np.flatnonzero(its.graph.kind == JOIN)
    call = its.call_of[its.graph.source[joins]]
    moved = joins[(call >= 0) & (lag[joins] > DROPPED)]
    lag[moved] -= behind_ns[its.call_of[its.graph.source[moved]]]
    return lag


def unqueued(run: Measures, which: Bool, lag_ns: Lags) -> Int64:
    """These calls (a flag for each) go before what they queued behind, which takes longer for it.

    The two share their links: what goes first is moved at the other's expense.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.astype(np.int64)
    graph = its.graph
    queue = np.flatnonzero(graph.kind == QUEUE)
    call, blocker = its.call_of[graph.target[queue]], its.call_of[graph.source[queue]]
    mine = (call >= 0) & (blocker >= 0) & which[call]
    lag[queue[mine]] = DROPPED
    transfers, moved = its.transfers
    more = np.zeros(its.calls.rank.size, dtype=np.int64)
    np.maximum.at(more, blocker[mine], its.transfer_ns[call[mine]])
    lag[transfers] += more[moved]
    return lag
