"""What if: edits of a run's graph, each a column of lags."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int32, Int64, codes, sorted_by
from commtrace.causal.replay.graph import DROPPED, Change, Lags, changed, changes
from commtrace.causal.run.builder import HOSTS, JOIN, LAUNCH, QUEUE, WAIT
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import OwnWork, own_work
from commtrace.measures import measure
from commtrace.metrics.run.whole import has_steps
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "as_measured",
    "changed_step_ns",
    "even",
    "factors",
    "joined",
    "needing_nobody",
    "of_ranks",
    "of_the_rest",
    "saved",
    "saved_by",
    "scaled",
    "step_ends",
    "step_ns",
    "steps_at",
    "transferring",
    "transferring_less",
    "transfers",
    "typical",
    "typical_in_median",
    "wanted_in_median",
    "without_waits",
]


_AT_ONCE = 1 << 18  # edges of own work
_LONGER = 1.2  # times the median tenth


def as_measured(run: Measures) -> Lags:
    """The lags of no edit."""
    return run_graph(run).graph.lag_ns


def typical(
    run: Measures,
    ranks: Collection[int],
    lag_ns: Lags | None = None,
    part: int | None = None,
    work: OwnWork | None = None,
) -> Change:
    """The ranks do each segment in the time that is typical of those that are not among them.

    Where none of these has such a place, so much of its time as is typical of a rank's step.
    ``part`` is HOSTS or DEVICES for only that of their own work. ``lag_ns`` are the lags of
    edits made before, that this one changes, and ``work`` the own work with these, by default as
    measured; so in the others.
    """
    work = work or own_work(run)
    mine = of_ranks(run, ranks)
    return scaled(run, work, of_the_rest(run, ranks, work, mine), mine, lag_ns, part)


def of_ranks(run: Measures, ranks: Collection[int]) -> Bool:
    """Which calls are theirs."""
    return np.isin(run_graph(run).calls.rank, list(ranks))


def of_the_rest(run: Measures, ranks: Collection[int], work: OwnWork, which: Bool) -> Float64:
    """The own work of some of these ranks' calls as is typical of those not among them."""
    if len(ranks) > 1:
        mine = of_ranks(run, ranks)
        return np.stack([column.of_the_rest(mine, which) for column in work.parts], axis=1)
    return work.typical_ns[which]


def typical_in_median(
    run: Measures, ranks: Collection[int], lag_ns: Lags, work: OwnWork, wanted_ns: Float64
) -> Change:
    """The ranks' work is as ``wanted_in_median`` has it."""
    mine = of_ranks(run, ranks)
    return scaled(run, work, wanted_ns[mine], mine, lag_ns)


def wanted_in_median(run: Measures, work: OwnWork) -> Float64:
    """The own work of calls, typical in the median of steps at each place: calls × 2.

    How it scatters over the steps stays, and where it is mostly less.
    """
    calls = run_graph(run).calls
    at = codes(calls.rank, calls.place)
    count = np.bincount(at)
    middle = np.cumsum(count) - count + (count - 1) // 2  # half of the steps are not most of them
    excess = np.maximum(np.nan_to_num(work.own_ns - work.typical_ns), 0.0)
    usual = np.stack([_nth_of_each(at, its, middle) for its in excess.T], axis=1)[at]
    wanted: Float64 = np.maximum(work.own_ns - usual, 0.0)
    return wanted


def _nth_of_each(number: Int64, values: Float64, places: Int64) -> Float64:
    """The values, 0 or more, at some places, once they are in the order of their numbers."""
    if not values.any():
        return values[: places.size]
    order = sorted_by(np.abs(values).view(np.int64))  # as their bits are
    return values[order[sorted_by(number[order])[places]]]


def even(
    run: Measures,
    lag_ns: Lags | None = None,
    but: Collection[int] = (),
    work: OwnWork | None = None,
) -> Change:
    """All ranks, ``but`` some, do each segment in the mean time of these."""
    its, work = run_graph(run), work or own_work(run)
    mine = ~np.isin(its.calls.rank, list(but))
    wanted = work.mean_ns[mine]
    if but:
        place = work.place[mine]
        counts = np.maximum(np.bincount(place), 1)
        sums = [np.bincount(place, own) for own in work.own_ns[mine].T]
        wanted = np.stack([each / counts for each in sums], axis=1)[place]
    return scaled(run, work, wanted, mine, lag_ns)


def without_waits(run: Measures, which: Bool, lag_ns: Lags) -> Int64:
    """Nobody waits for these calls (a flag for each) but the end of their step."""
    its = run_graph(run)
    lag: Int64 = lag_ns.astype(np.int64)
    joins, call = its.joins
    lag[joins[which[call]]] = DROPPED
    return lag


def needing_nobody(run: Measures, which: Bool, lag_ns: Lags) -> Int64:
    """These calls (a flag for each) move nothing, and nothing waits for them but a run's end.

    On GPUs what waited for one waits for what that had waited for itself: another on its stream.
    """
    its = run_graph(run)
    lag: Int64 = lag_ns.astype(np.int64)
    kind, time = its.graph.kind, its.graph.time_ns
    begin, call_of = its.graph.source[:], its.call_of
    call, source = call_of[its.graph.target[:]], call_of[begin]
    on_cpu = which & its.calls.on_cpu
    starts = (call >= 0) & which[call] & (kind == LAUNCH)
    called = np.zeros(time.size, dtype=np.bool_)  # what their threads did within the calls
    called[begin[starts & on_cpu[call]]] = True
    lag[starts | ((kind == LAUNCH) & called[begin])] = 0
    moves, moved = its.transfers
    moves, moved = moves[which[moved]], moved[which[moved]]
    arrived = (time[its.started] - time[its.met])[moved]
    lag[moves] = np.where(its.calls.on_cpu[moved], 0, arrived)
    mine, out = (call >= 0) & on_cpu[call], (source >= 0) & on_cpu[source]
    lag[(mine & (kind == QUEUE)) | (out & np.isin(kind, (QUEUE, JOIN)))] = DROPPED
    return lag


def joined(run: Measures, later: Bool, gone: Bool, time_ns: Float64, lag_ns: Lags) -> Lags:
    """Calls that follow one another are one, the last: a flag and a time for each.

    ``gone`` are those that are no more; ``later`` are all behind the first of their row, which
    need no work of the host. Those of a row that stay take the time that is given.
    """
    its = run_graph(run)
    lag = needing_nobody(run, gone, lag_ns)
    lag[its.own[(its.own_column == HOSTS) & later[its.own_call]]] = 0
    return transferring(run, ~gone & (time_ns > 0), time_ns, lag)


def transferring(run: Measures, which: Bool, time_ns: Float64, lag_ns: Lags) -> Lags:
    """The transfers of these calls (a flag and a time for each) take that long."""
    return changed(lag_ns, transfers(run, which, time_ns))


def transfers(run: Measures, which: Bool, time_ns: Float64) -> Change:
    """The same as what it changes of any lags."""
    edges, call = run_graph(run).transfers
    mine = which[call]
    return edges[mine].astype(np.int32), np.rint(time_ns[call[mine]]).astype(np.int64)


def transferring_less(run: Measures, less_ns: Int64, lag_ns: Lags) -> Lags:
    """The transfers of calls take so much less (a time for each), as far as they take that long."""
    edges, call = run_graph(run).transfers
    less = less_ns[call]
    edges, less = edges[less > 0], less[less > 0]
    return changed(lag_ns, (edges, np.maximum(lag_ns[edges] - less, 0)))


def saved(run: Measures, lag_ns: Lags, edits: Iterable[Lags]) -> Int64:
    """What each step is shorter with the lags of each edit than with these: steps × edits."""
    return saved_by(run, lag_ns, map(partial(changes, lag_ns), edits))  # holds no edit's lags


def saved_by(run: Measures, lag_ns: Lags, edits: Iterable[Change]) -> Int64:
    """What each step is shorter with each change of these lags: steps × edits."""
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    steps = changed_step_ns(run, lag_ns, chain([nothing], edits))
    return steps[:, :1] - steps[:, 1:]


def steps_at(run: Measures, time_ns: Int64) -> Int64:
    """How long each step is with the times of all nodes in a replay."""
    its = run_graph(run)
    return np.diff(its.step_ends.at(time_ns), prepend=its.begin_ns)


def step_ns(run: Measures, lags: Iterable[Lags]) -> Int64:
    """How long each step is with the lags of each edit: steps × edits."""
    measured = as_measured(run)
    return changed_step_ns(run, measured, map(partial(changes, measured), lags))


def changed_step_ns(run: Measures, lag_ns: Lags, edits: Iterable[Change]) -> Int64:
    """How long each step is with each change of these lags: steps × edits."""
    its = run_graph(run)
    return np.diff(its.step_ends.replayed(lag_ns, edits), axis=0, prepend=its.begin_ns)


def step_ends(run: Measures, lags: Iterable[Lags]) -> Int64:
    """When each step of the run ends with the lags of each edit: steps × edits.

    A step ends with its last rank's, on CPUs the last one with its last joint operation. A run
    without steps ends ten times: with every tenth of its operations.
    """
    measured = as_measured(run)
    return run_graph(run).step_ends.replayed(measured, map(partial(changes, measured), lags))


def scaled(
    run: Measures,
    work: OwnWork,
    wanted_ns: Float64,
    which: Bool,
    lag_ns: Lags | None,
    part: int | None = None,
    own: Int64 | None = None,
) -> Change:
    """The segments of some calls take the time that is wanted of these, shared as it was.

    Of the graph's ``own`` edges only some, if these are given. How a program starts stays.
    """
    its = run_graph(run)
    lag = its.graph.lag_ns if lag_ns is None else lag_ns
    row = np.cumsum(which, dtype=np.int32) - 1
    changes_at = which & ~_starting_up(run)
    found: list[Change] = [(np.empty(0, np.int32), np.empty(0, np.int64))]
    parts = (slice(at, at + _AT_ONCE) for at in range(0, its.own.size, _AT_ONCE))
    for some in parts if own is None else (own,):
        call, column = its.own_call[some], its.own_column[some]
        mine = changes_at[call] if part is None else changes_at[call] & (column == part)
        edges, at = its.own[some][mine], (call[mine], column[mine])
        wanted = wanted_ns[row[at[0]], at[1]]
        factor = factors(work.on_clock(work.own_ns[at], at), work.on_clock(wanted, at))
        others, of = _beside(run)
        near = np.minimum(np.searchsorted(edges, of), max(edges.size - 1, 0))
        others, near = others[(there := np.append(edges, -1)[near] == of)], near[there]
        edges, factor = np.append(edges, others), np.append(factor, factor[near])
        edited = np.rint(lag[edges] * factor).astype(np.int64)
        other = edited != lag[edges]
        found.append((edges[other], edited[other]))
    edges, lags = map(np.concatenate, zip(*found, strict=True))
    return edges, lags


@measure
def _starting_up(run: Measures) -> Bool:
    """Which calls are of a run's first tenth, where that takes longer for each.

    How ranks start tells nothing of how they work. None of a run that has steps.
    """
    its = run_graph(run)
    each = its.step_ns / np.maximum(np.bincount(its.step_of, minlength=its.step_ns.size), 1)
    longer = each[0] > _LONGER * median(each)
    first: Bool = (its.step_of == 0) & longer & (not has_steps(run))
    return first


@measure
def _beside(run: Measures) -> tuple[Int32, Int32]:
    """What would hold back a start, or a host that resumes, were its own lag shorter.

    A start's launch or stream, and a host's call: these edges, and beside each of them the one
    that is part of a segment.
    """
    its = run_graph(run)
    graph, own = its.graph, its.own
    lags = own[np.isin(graph.kind[own], (LAUNCH, QUEUE, JOIN))]
    if not lags.size:
        return lags, lags
    lag_to: Int32 = np.full(graph.time_ns.size, -1, dtype=np.int32)
    lag_to[graph.target[lags]] = lags
    is_other = np.isin(graph.kind, (LAUNCH, QUEUE, WAIT))
    is_other[own] = False
    others = np.flatnonzero(is_other).astype(np.int32)
    beside = lag_to[graph.target[others]]
    return others[beside >= 0], beside[beside >= 0]


def factors(own_ns: Int32 | Int64 | Float64, wanted_ns: Float64) -> Float64:
    """How many times as long each call's own work takes as wanted; 1 where nothing is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = wanted_ns / own_ns
    return np.where(np.isfinite(factor), factor, 1.0)
