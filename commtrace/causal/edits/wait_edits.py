"""What if nobody waited too early, or in the wrong queue: edits of joins and of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, codes, in_order
from commtrace.causal.replay.graph import DROPPED, Lags
from commtrace.causal.run.builder import JOIN, QUEUE
from commtrace.causal.run.run_graph import run_graph

if TYPE_CHECKING:
    from commtrace.causal.run.calls import Calls
    from commtrace.measures import Measures

__all__ = ["called_earlier", "unqueued", "waiting_later"]

_LONG_NS = 1 << 42  # more than an hour: nothing is late for so long


def waiting_later(run: Measures, behind_ns: Int64, lag_ns: Lags) -> Int64:
    """Who waits for a call does so much of the work behind the wait before it.

    ``behind_ns`` has a time for each call, 0 where its wait stays.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.astype(np.int64)
    joins, call = its.joins
    lag[joins] -= np.where(lag[joins] > DROPPED, behind_ns[call], 0)
    return lag


def called_earlier(run: Measures, which: Bool, lag_ns: Lags) -> Int64:
    """Each of these calls (a flag for each) starts when that before it in its step is done.

    As it can if it needs nothing that is done meanwhile. What went before it in its queue goes
    with it; it is called for no earlier.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.astype(np.int64)
    calls, graph = its.calls.taken(which), its.graph
    order = np.flatnonzero(which)[in_order(calls.rank, calls.worker, calls.launch_ns)]
    place = codes(its.calls.rank, its.calls.worker, its.calls.step)[order]
    follows = np.flatnonzero(place[1:] == place[:-1])
    since = np.full(graph.time_ns.size, _LONG_NS + int(its.end_ns[-1]))  # nothing is behind that
    since[its.started[order[follows + 1]]] = graph.time_ns[its.ended[order[follows]]]
    edges = np.flatnonzero(np.isin(graph.kind, (JOIN, QUEUE)))
    meanwhile = graph.time_ns[graph.source[edges]] - since[graph.target[edges]]
    lag[edges] -= np.maximum(meanwhile, 0)
    return lag


def unqueued(run: Measures, queued_ns: Int64, apart: Bool, in_front: Bool, lag_ns: Lags) -> Int64:
    """Some calls go before others that they queued behind, which then take longer for it.

    A time for each call, how long it queued, and two flags, whether it is like those that did, and
    whether like those that were in front of them: these two kinds go in queues of their own. They
    share their links: what goes first is moved at the other's expense.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.astype(np.int64)
    graph = its.graph
    queue = np.flatnonzero(graph.kind == QUEUE)
    call, before = its.call_of[graph.target[queue]], its.call_of[graph.source[queue]]
    both = (call >= 0) & (before >= 0)
    queue, call, before = queue[both], call[both], before[both]
    mine = apart[call] & in_front[before]
    lag[queue[mine]] = DROPPED
    transfers, moved = its.transfers
    more, stuck = np.zeros(its.calls.rank.size, dtype=np.int64), mine & (queued_ns[call] > 0)
    np.maximum.at(more, before[stuck], its.transfer_ns[call[stuck]])
    lag[transfers] += more[moved]
    lag[queue[~mine]] += _still_ns(its.calls, queued_ns, in_front)[call[~mine]]
    return lag


def _still_ns(calls: Calls, queued_ns: Int64, in_front: Bool) -> Int64:
    """How long those in front of calls that go ahead keep the next like them waiting.

    Beyond the end of the call before it, which is as much earlier as those that queued. What waits
    so is done later, too, as far as it was not idle before.
    """
    rank, worker, start, end = calls.rank, calls.worker, calls.start_ns, calls.end_ns
    order = in_order(rank, worker, start)
    place = np.arange(order.size)
    ahead = np.maximum.accumulate(np.where(queued_ns[order] > 0, place, -1))
    fronts = np.flatnonzero(in_front[order])
    at, last = order[fronts[1:]], order[fronts[1:] - 1]
    since = np.maximum(ahead[fronts[1:] - 1], fronts[:-1])  # who went ahead last, else none did
    more = queued_ns[order[since]] + end[order[since]] - end[last]
    idle = start[at] - end[last]
    idle[(rank[at] != rank[order[fronts[:-1]]]) | (worker[at] != worker[last])] = _LONG_NS
    summed = np.cumsum(more - idle)
    late = summed - np.minimum(np.minimum.accumulate(summed), 0)  # never less than 0
    still = np.zeros(order.size, dtype=np.int64)
    still[at] = np.where(idle < _LONG_NS, np.maximum(np.append(0, late[:-1]) + more, 0), 0)
    return still
