"""What if a rank's host launched in time or did not block, or its copies were faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64, among, distinct, least, rows_of_each
from commtrace.causal.replay.graph import DROPPED
from commtrace.causal.run.builder import COPY, FEED, HOST, JOIN, WAIT
from commtrace.causal.run.run_graph import run_graph
from commtrace.diagnosis import CannotLook
from commtrace.intervals import covered, inside
from commtrace.measures import measure
from commtrace.metrics.run.run_clock import intervals_on_run, on_run

if TYPE_CHECKING:
    from commtrace.intervals import Intervals
    from commtrace.measures import Measures

__all__ = [
    "copying_within",
    "doing_nothing_within",
    "launching_ahead",
    "launching_at_once",
    "launching_within",
    "not_blocking",
    "not_blocking_first",
    "not_feeding",
    "not_launching",
    "not_waiting_within",
]

_NONE = np.empty(0, dtype=np.int64)
_CLOCKS_NS = 5_000  # the GPU's times and the host's may differ by that


def launching_within(
    run: Measures, rank: int, launch_ns: Int64, most_ns: int, lag_ns: Int64
) -> None:
    """A rank's host needs at most so long for each of these launches, on the rank's own clock.

    Changes ``lag_ns`` in place, as the others here do: an edit is often of many ranks.
    """
    edges = _edges(run, HOST, rank)
    launches = edges[among(_ends_ns(run, edges), on_run(run, rank, launch_ns))]
    lag_ns[launches] = np.minimum(lag_ns[launches], most_ns)


def doing_nothing_within(run: Measures, rank: int, when: Intervals, lag_ns: Int64) -> None:
    """A rank's host does not do what it did within a merged set of times, on its own clock."""
    edges = _edges(run, HOST, rank)
    end = _ends_ns(run, edges)
    measured = run_graph(run).graph.lag_ns[edges].astype(np.int64)
    did_ns = covered(end - measured, end, intervals_on_run(run, rank, when))
    left = 1 - did_ns / np.maximum(measured, 1)
    lag_ns[edges] = np.where(measured > 0, np.rint(lag_ns[edges] * left), lag_ns[edges])


def not_launching(run: Measures, rank: int, launch_ns: Int64, lag_ns: Int64) -> None:
    """A rank's host takes no time from one of these launches to the next, on the rank's own clock.

    But where it launches something else between.
    """
    its, edges = run_graph(run), _edges(run, HOST, rank)
    launches = on_run(run, rank, launch_ns)
    ends = (its.graph.time_ns[nodes[edges]] for nodes in (its.graph.source, its.graph.target))
    from_one, to_one = (among(time_ns, launches) for time_ns in ends)
    between = edges[from_one & to_one]
    lag_ns[between] = np.minimum(lag_ns[between], 0)


def launching_at_once(run: Measures, rank: int, idle: Intervals, lag_ns: Int64) -> None:
    """A rank's host takes no time for what it does within these, on the rank's own clock.

    Nor does it resume later than what it waited for was done.
    """
    edges = np.append(_edges(run, HOST, rank), _waits(run, rank))
    late = edges[_ends_within(run, rank, edges, idle)]
    lag_ns[late] = np.minimum(lag_ns[late], 0)


def launching_ahead(run: Measures, rank: int, most_ns: int, but: Intervals, lag_ns: Int64) -> None:
    """A rank's host takes no time for any launch that it needs no longer for.

    But for those within a merged set of times, on the rank's own clock.
    """
    edges = _edges(run, HOST, rank)
    ahead = edges[~_ends_within(run, rank, edges, but) & (lag_ns[edges] <= most_ns)]
    lag_ns[ahead] = np.minimum(lag_ns[ahead], 0)


def _ends_within(run: Measures, rank: int, edges: Int64, when: Intervals) -> Bool:
    """Which of a rank's edges end within a merged set of times, on the rank's own clock."""
    return inside(_ends_ns(run, edges) - 1, intervals_on_run(run, rank, when))


def _ends_ns(run: Measures, edges: Int64) -> Int64:
    """When edges end, on the run's clock."""
    its = run_graph(run).graph
    return its.time_ns[its.target[edges]]


def not_blocking(run: Measures, rank: int, done_ns: Int64, soon_ns: int, lag_ns: Int64) -> None:
    """A rank's host does not wait for what was done at these times, on the rank's own clock.

    That are the waits that ended so soon after one of them.
    """
    waits, since_ns, _ = _since(run, rank, done_ns)
    lag_ns[waits[since_ns <= soon_ns]] = DROPPED


def not_blocking_first(
    run: Measures, rank: int, done_ns: Int64, soon_ns: int, lag_ns: Int64
) -> None:
    """The same, but of several waits behind one such time only the first: the next is another's."""
    waits, since_ns, behind = _since(run, rank, done_ns)
    first_ns = least(behind, since_ns, int(behind.max(initial=-1)) + 1)[behind]
    lag_ns[waits[(since_ns <= soon_ns) & (since_ns == first_ns)]] = DROPPED


def _since(run: Measures, rank: int, done_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """A rank's waits behind any of some times: how long after the last of these, and its number."""
    waits = _waits(run, rank)
    done = np.sort(on_run(run, rank, done_ns))
    resumed_ns = _ends_ns(run, waits)
    last = np.searchsorted(done - _CLOCKS_NS, resumed_ns, side="right") - 1
    behind = last >= 0
    return waits[behind], (resumed_ns - done[last])[behind], last[behind]


def not_waiting_within(run: Measures, rank: int, when: Intervals, lag_ns: Int64) -> None:
    """A rank's host waits for nothing within a merged set of times, on its own clock.

    Who frees memory goes on freeing once what it waited for is done.
    """
    waits, (begin, end) = _waits(run, rank), intervals_on_run(run, rank, when)
    there = inside(_ends_ns(run, waits), (begin, end + _CLOCKS_NS))
    lag_ns[waits[there]] = DROPPED


def copying_within(
    run: Measures, rank: int, start_ns: Int64, most_ns: Float64, lag_ns: Int64
) -> None:
    """A rank's copies that started at these times, on its own clock, take at most so long each.

    So does the host that feeds one from pageable memory.
    """
    its = run_graph(run)
    edges = np.concatenate([_edges(run, kind, rank) for kind in (COPY, FEED)])
    started_ns = on_run(run, rank, start_ns)
    order = np.argsort(started_ns, kind="stable")
    begin = its.graph.time_ns[its.graph.source[edges]]
    at = np.minimum(np.searchsorted(started_ns[order], begin), order.size - 1)
    mine = started_ns[order[at]] == begin
    most = np.rint(most_ns[order[at]]).astype(np.int64)
    lag_ns[edges[mine]] = np.minimum(lag_ns[edges], most)[mine]


def not_feeding(run: Measures, rank: int, start_ns: Int64, lag_ns: Int64) -> None:
    """A rank's host does not wait for copies that started at these times, on its own clock."""
    its, feeds = run_graph(run), _edges(run, FEED, rank)
    begin = its.graph.time_ns[its.graph.source[feeds]]
    lag_ns[feeds[among(begin, on_run(run, rank, start_ns))]] = DROPPED


def _waits(run: Measures, rank: int) -> Int64:
    """Those of a rank's host that lead from what it waits for."""
    joins = _edges(run, JOIN, rank)
    return joins[_of_hosts(run)[run_graph(run).graph.target[joins]]]


def _edges(run: Measures, kind: int, rank: int) -> Int64:
    """Those of a kind that lead to a rank. CannotLook where its GPUs are not in the graph."""
    if rank not in _on_gpus(run):
        raise CannotLook(
            "needs the run's graph to hold its GPUs, which it does where these communicate"
        )
    return _of_kind(run, kind).get(rank, _NONE)


@measure
def _on_gpus(run: Measures) -> frozenset[int]:
    """The ranks that communicate on GPUs."""
    calls = run_graph(run).calls
    return frozenset(distinct(calls.rank[~calls.on_cpu]).tolist())


@measure
def _of_kind(run: Measures, kind: int) -> Mapping[int, Int64]:
    """The edges of a kind that lead to each rank of the graph."""
    its, ranks = run_graph(run), distinct(run_graph(run).calls.rank)
    edges = np.flatnonzero(its.graph.kind == kind)
    rows = rows_of_each(its.rank[its.graph.target[edges]], ranks)
    return {rank: edges[mine] for rank, mine in zip(ranks.tolist(), rows, strict=True)}


@measure
def _of_hosts(run: Measures) -> Bool:
    """Which nodes are of a host thread, but for one by itself."""
    its = run_graph(run)
    of = np.zeros(its.graph.time_ns.size, dtype=np.bool_)
    of[its.graph.target[np.flatnonzero(np.isin(its.graph.kind, (HOST, WAIT)))]] = True
    of[its.graph.source[np.flatnonzero(its.graph.kind == HOST)]] = True
    return of
