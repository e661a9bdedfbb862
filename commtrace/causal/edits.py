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
    "joined",
    "needing_nobody",
    "of_the_rest",
    "saved",
    "step_ends",
    "step_ns",
    "transferring",
    "transferring_less",
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

    Where none of these has such a place, so much of its time as is typical of a rank's step.
    ``part`` is HOSTS or DEVICES for only that of their own work. ``lag_ns`` are the lags of
    edits made before, and ``work`` the own work with these, by default as measured; so in the
    others.
    """
    its, work = run_graph(run), work or own_work(run)
    mine = np.isin(its.calls.rank, list(ranks))
    wanted = work.typical_ns
    if len(ranks) > 1:
        parts = [_usual(run, work.own_ns[:, at], work.place, mine) for at in (HOSTS, DEVICES)]
        wanted = np.stack(parts, axis=1)
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
    work, idle = own_work(run), idle_ns(run)
    wanted = work.own_ns.astype(np.float64)
    wanted[:, HOSTS] += _usual(run, idle, work.place, mine) - idle
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
    """These calls (a flag for each) move nothing, and nothing waits for them but a run's end.

    On GPUs what waited for one waits for what that had waited for itself: another on its stream.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    kind, time = its.graph.kind, its.graph.time_ns
    call, source = its.call_of[its.graph.target], its.call_of[its.graph.source]
    lag[(call >= 0) & which[call] & (kind == LAUNCH)] = 0
    moves = np.flatnonzero((call >= 0) & which[call] & (kind == TRANSFER))
    arrived = (time[its.started] - time[its.met])[call[moves]]
    lag[moves] = np.where(its.calls.on_cpu[call[moves]], 0, arrived)
    on_cpu = which & its.calls.on_cpu
    mine, out = (call >= 0) & on_cpu[call], (source >= 0) & on_cpu[source]
    lag[(mine & (kind == QUEUE)) | (out & np.isin(kind, (QUEUE, JOIN)))] = DROPPED
    return lag


def joined(run: Measures, later: Bool, gone: Bool, time_ns: Float64, lag_ns: Int64) -> Int64:
    """Calls that follow one another are one, the last: a flag and a time for each.

    ``gone`` are those that are no more; ``later`` are all behind the first of their row, which
    need no work of the host. Those of a row that stay take the time that is given.
    """
    its = run_graph(run)
    lag = needing_nobody(run, gone, lag_ns)
    edges, column = own_edges(its)
    mine = edges[(column == HOSTS) & later[its.segment[edges]]]
    lag[mine] = 0
    return transferring(run, ~gone & (time_ns > 0), time_ns, lag)


def transferring(run: Measures, which: Bool, time_ns: Float64, lag_ns: Int64) -> Int64:
    """The transfers of these calls (a flag and a time for each) take that long."""
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    edges = np.flatnonzero(its.graph.kind == TRANSFER)
    call = its.call_of[its.graph.target[edges]]
    mine = which[call] & (call >= 0)
    lag[edges[mine]] = np.rint(time_ns[call[mine]]).astype(np.int64)
    return lag


def transferring_less(run: Measures, less_ns: Int64, lag_ns: Int64) -> Int64:
    """The transfers of calls take so much less (a time for each), as far as they take that long."""
    its = run_graph(run)
    lag: Int64 = lag_ns.copy()
    edges = np.flatnonzero(its.graph.kind == TRANSFER)
    less = less_ns[its.call_of[its.graph.target[edges]]]
    lag[edges] = np.where(less > 0, np.maximum(lag[edges] - less, 0), lag[edges])
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


def _usual(run: Measures, time_ns: Int64, place: Int64, mine: Bool | None) -> Float64:
    """Of each call the median at its place of others, else as much of its own as of their steps.

    Others are those not ``mine`` (a flag for each call), by default those of other ranks.
    """
    calls = run_graph(run).calls
    in_step = codes(calls.step, calls.rank)
    first = np.unique(in_step, return_index=True)[1]
    sums = np.bincount(in_step, weights=time_ns).astype(np.float64)
    if mine is None:
        usual, _ = others(place, time_ns.astype(np.float64))
        by_step, _ = others(calls.step[first], sums)
    else:
        usual = of_the_rest(time_ns, place, mine)
        by_step = of_the_rest(sums.astype(np.int64), calls.step[first], mine[first])
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = time_ns * (by_step / sums)[in_step]
    return np.where(np.isnan(usual), scaled, usual)


def of_the_rest(own_ns: Int64, place: Int64, mine: Bool) -> Float64:
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
