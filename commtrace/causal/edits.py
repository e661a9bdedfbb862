"""What if: edits of a run's graph, each a column of lags."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64, codes
from commtrace.causal.builder import JOIN, LAUNCH, QUEUE, TRANSFER
from commtrace.causal.graph import DROPPED, replay
from commtrace.causal.run_graph import run_graph
from commtrace.causal.segments import DEVICES, HOSTS, OwnWork, idle_ns, others, own_edges, own_work

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "as_measured",
    "even",
    "factors",
    "needing_nobody",
    "saved",
    "step_ends",
    "step_ns",
    "transferring",
    "typical",
    "typically_idle",
    "wanted_idle",
    "without_waits",
]

_AT_ONCE = 8  # edits, so that their lags fit the memory


def as_measured(run: Measures) -> Int64:
    """The lags of no edit."""
    return run_graph(run).graph.lag_ns


def typical(
    run: Measures,
    ranks: Collection[int],
    lag_ns: Int64 | None = None,
    part: int | None = None,
    work: OwnWork | None = None,
) -> Int64:
    """The ranks do each segment in the time that is typical of those that are not among them.

    ``part`` is HOSTS or DEVICES for only that of their own work. ``lag_ns`` are the lags of
    edits made before, and ``work`` the own work with these, by default as measured; so in the
    others.
    """
    its, work = run_graph(run), work or own_work(run)
    mine = np.isin(its.calls.rank, list(ranks))
    wanted = work.typical_ns
    if len(ranks) > 1:
        rest = [_of_the_rest(work.own_ns[:, at], work.place, mine) for at in (HOSTS, DEVICES)]
        wanted = np.where(np.isnan(rest).T, work.typical_ns, np.stack(rest, axis=1))
    return _scaled(run, work.own_ns, wanted, mine, lag_ns, part)


def typically_idle(run: Measures, ranks: Collection[int], lag_ns: Int64 | None = None) -> Int64:
    """The ranks' hosts are without operators as long as is typical of the rest; these stay.

    Processes that fight for cores compute longer by turns, and seldom sleep.
    """
    mine = np.isin(run_graph(run).calls.rank, list(ranks))
    own = own_work(run).own_ns
    return _scaled(run, own, wanted_idle(run, mine), mine, lag_ns)


def wanted_idle(run: Measures, mine: Bool | None = None) -> Float64:
    """The own work of calls, with no longer idle than is typical of others: calls × 2.

    Others are those not ``mine`` (a flag for each call), by default those of other ranks.
    """
    its, work, idle = run_graph(run), own_work(run), idle_ns(run)
    in_step = codes(its.calls.step, its.calls.rank)
    first = np.unique(in_step, return_index=True)[1]
    sums = np.bincount(in_step, weights=idle).astype(np.float64)
    if mine is None:
        usual, _ = others(work.place, idle.astype(np.float64))
        by_step, _ = others(its.calls.step[first], sums)
    else:
        usual = _of_the_rest(idle, work.place, mine)
        by_step = _of_the_rest(sums.astype(np.int64), its.calls.step[first], mine[first])
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = idle * (by_step / sums)[in_step]
    wanted = work.own_ns.astype(np.float64)
    wanted[:, HOSTS] += np.where(np.isnan(usual), scaled, usual) - idle
    return wanted


def even(
    run: Measures,
    lag_ns: Int64 | None = None,
    but: Collection[int] = (),
    work: OwnWork | None = None,
) -> Int64:
    """All ranks, ``but`` some, do each segment in the mean time of these."""
    its, work = run_graph(run), work or own_work(run)
    mine = ~np.isin(its.calls.rank, list(but))
    wanted = work.mean_ns
    if but:
        count = int(work.place.max()) + 1
        sums = np.zeros((count, 2))
        np.add.at(sums, work.place[mine], work.own_ns[mine])
        counts = np.bincount(work.place[mine], minlength=count)
        wanted = (sums / np.maximum(counts, 1)[:, None])[work.place]
    return _scaled(run, work.own_ns, wanted, mine, lag_ns)


def without_waits(run: Measures, which: Bool, lag_ns: Int64) -> Int64:
    """Nobody waits for these calls (a flag for each) but the end of their step."""
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    joins = np.flatnonzero(its.graph.kind == JOIN)
    call = its.call_of[its.graph.source[joins]]
    lag[joins[which[call] & (call >= 0)]] = DROPPED
    return lag


def needing_nobody(run: Measures, which: Bool, lag_ns: Int64) -> Int64:
    """These calls (a flag for each) move nothing, and nothing waits for them but a run's end."""
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    kind = its.graph.kind
    call, source = its.call_of[its.graph.target], its.call_of[its.graph.source]
    mine, out = (call >= 0) & which[call], (source >= 0) & which[source]
    lag[mine & np.isin(kind, (LAUNCH, TRANSFER))] = 0
    lag[(mine & (kind == QUEUE)) | (out & np.isin(kind, (QUEUE, JOIN)))] = DROPPED
    return lag


def transferring(run: Measures, which: Bool, time_ns: Float64, lag_ns: Int64) -> Int64:
    """The transfers of these calls (a flag and a time for each) take that long."""
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    edges = np.flatnonzero(its.graph.kind == TRANSFER)
    call = its.call_of[its.graph.target[edges]]
    mine = which[call] & (call >= 0)
    lag[edges[mine]] = np.rint(time_ns[call[mine]]).astype(np.int64)
    return lag


def saved(run: Measures, lag_ns: Int64, edits: Iterable[Int64]) -> Int64:
    """What each step is shorter with each edit than with these lags: steps × edits."""
    steps = step_ns(run, chain([lag_ns], edits))
    return steps[:, :1] - steps[:, 1:]


def step_ns(run: Measures, lags: Iterable[Int64]) -> Int64:
    """How long each step is with the lags of each edit: steps × edits."""
    return np.diff(step_ends(run, lags), axis=0, prepend=run_graph(run).begin_ns)


def step_ends(run: Measures, lags: Iterable[Int64]) -> Int64:
    """When each step of the run ends with the lags of each edit: steps × edits.

    A step ends with its last rank's; the last one with its last joint operation, since what is
    behind that delays nobody. A run without steps ends ten times: with every tenth of its
    operations.
    """
    its, left = run_graph(run), iter(lags)
    parts = [np.empty((len(its.ends), 0), dtype=np.int64)]
    while some := list(islice(left, _AT_ONCE)):
        time = replay(its.graph, np.stack(some, axis=1))
        ends = np.stack([time[nodes].max(axis=0) for nodes in its.ends])
        parts.append(np.maximum(ends, _joint_ends(run, time)))
    return np.concatenate(parts, axis=1)


def _joint_ends(run: Measures, time: Int64) -> Int64:
    """When the operations of each step are all done, as far as that was within it as measured.

    Ranks that are steps ahead have operations within it that are not of it.
    """
    its = run_graph(run)
    measured = its.graph.time_ns[its.ended]
    ends = np.full((len(its.ends), time.shape[1]), np.iinfo(np.int64).min)
    step = np.searchsorted(its.end_ns, measured)  # the first that ends behind it
    step = np.maximum(step, np.searchsorted(its.steps, its.calls.step))
    inside = step < len(its.ends)
    np.maximum.at(ends, step[inside], time[its.ended[inside]])
    return ends


def _of_the_rest(own_ns: Int64, place: Int64, mine: Bool) -> Float64:
    """The median at each place of those that are not among them; NaN where there is none."""
    answer = np.full(own_ns.size, np.nan)
    rest = np.flatnonzero(~mine)
    rest = rest[np.lexsort((own_ns[rest], place[rest]))]
    places, begins = np.unique(place[rest], return_index=True)
    sizes = np.diff(np.append(begins, rest.size))
    low, high = (own_ns[rest[begins + half]] for half in ((sizes - 1) // 2, sizes // 2))
    if places.size:
        at = np.minimum(np.searchsorted(places, place), places.size - 1)
        answer = np.where(places[at] == place, ((low + high) / 2)[at], np.nan)
    return answer


def _scaled(
    run: Measures,
    own_ns: Int64,
    wanted_ns: Float64,
    which: Bool,
    lag_ns: Int64 | None,
    part: int | None = None,
) -> Int64:
    """The segments of some calls take the time that is wanted, shared as it was."""
    its = run_graph(run)
    factor = np.where(which[:, None], factors(own_ns, wanted_ns), 1.0)
    edges, column = own_edges(its)
    if part is not None:
        edges, column = edges[column == part], column[column == part]
    lag: Int64 = (its.graph.lag_ns if lag_ns is None else lag_ns).copy()
    lag[edges] = np.rint(lag[edges] * factor[its.segment[edges], column]).astype(np.int64)
    return lag


def factors(own_ns: Int64, wanted_ns: Float64) -> Float64:
    """How many times as long each call's own work takes as wanted; 1 where nothing is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = wanted_ns / own_ns
    return np.where(np.isfinite(factor), factor, 1.0)
