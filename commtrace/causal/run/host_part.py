"""The part of ranks that communicate from the CPU: host threads, and gloo's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, rows_of_each
from commtrace.causal.rank.moments import Moments
from commtrace.causal.run.builder import HOST, JOIN, LAUNCH, QUEUE, WAIT, Builder
from commtrace.causal.run.calls import Calls
from commtrace.causal.run.in_call import in_call_ns
from commtrace.causal.run.joins import Gaps, joins
from commtrace.metrics.run.message_waits import message_waits
from commtrace.metrics.run.run_clock import clock_offsets
from commtrace.metrics.run.whole import profiler_steps
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["add_hosts"]

_RETURNS, _CALL, _WAITS, _RESUMES, _END_OF_STEP = _WHAT = range(5)
"""What a moment of a host is, in the order of those at one time."""


def add_hosts(run: Measures, made: Builder, rows: Int64) -> None:
    """The host threads and the operations of some calls, which ran on CPUs."""
    every = made.calls
    mine = every if rows.size == every.rank.size else every.taken(rows)
    place = codes(mine.rank, mine.thread)
    gaps = _gaps(run, mine, place)
    gap = joins(mine, place, gaps)
    waited = gap >= 0
    is_used = np.zeros(gaps.start_ns.size, dtype=np.bool_)
    is_used[gap[waited]] = True
    used, at_gap = np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[gap[waited]]
    # What its thread waited for was done when that ran on, however late gloo notes it.
    late = message_waits(run).noted_late[mine.row]
    ended_ns = np.where(late, np.clip(mine.last_ns, mine.start_ns, mine.end_ns), mine.end_ns)
    woken_ns = np.maximum(gaps.end_ns[gap[waited]], mine.start_ns[waited])
    ended_ns[waited] = np.minimum(ended_ns[waited], woken_ns)
    resume_ns = gaps.start_ns[used].copy()
    np.maximum.at(resume_ns, at_gap, ended_ns[waited])
    resume_ns = np.minimum(resume_ns, np.maximum(gaps.end_ns, gaps.start_ns)[used])
    ended_ns[waited] = np.minimum(ended_ns[waited], resume_ns[at_gap])
    rank_of = np.zeros(int(place.max()) + 1, dtype=np.int64)
    rank_of[place] = mine.rank
    gap_place = gaps.place[used]
    begins = np.ones(used.size, dtype=np.bool_)  # not with the call that is waited for
    begins[at_gap[gaps.start_ns[gap[waited]] == mine.launch_ns[waited]]] = False
    wait_ns, wait_place = gaps.start_ns[used[begins]], gap_place[begins]
    called = made.nodes(mine.launch_ns, mine.rank)
    waits = made.nodes(wait_ns, rank_of[wait_place])
    resumes = made.nodes(resume_ns, rank_of[gap_place])
    bound_ns, bound_place, step, is_end = _step_bounds(run, mine, place)
    bounds = made.nodes(bound_ns, rank_of[bound_place])
    made.end_steps(bounds[is_end], step[is_end])
    return_ns = mine.launch_ns + in_call_ns(run, mine)
    back = np.flatnonzero(return_ns > mine.launch_ns)
    wait = Moments(gap_place, gaps.start_ns[used]).last(place[back], return_ns[back])
    back = back[np.append(resume_ns, NULL)[wait] <= mine.launch_ns[back]]  # waits none within
    returns = made.nodes(return_ns[back], mine.rank[back])
    _chain(
        made,
        rows,
        np.concatenate((called, returns, waits, resumes, bounds)),
        np.concatenate((place, place[back], wait_place, gap_place, bound_place)),
        np.concatenate((mine.launch_ns, return_ns[back], wait_ns, resume_ns, bound_ns)),
        np.repeat(
            [_CALL, _RETURNS, _WAITS, _RESUMES, _END_OF_STEP],
            [called.size, returns.size, waits.size, resumes.size, bounds.size],
        ),
    )
    started = made.nodes(mine.start_ns, mine.rank)
    ended = made.nodes(ended_ns, mine.rank)
    made.started[rows], made.ended[rows] = started, ended
    made.edges(JOIN, ended[waited], resumes[at_gap], 0)
    _start(made, mine, called, started, ended, ended_ns)


def _chain(
    made: Builder, rows: Int64, node: Int64, place: Int64, time_ns: Int64, what: Int64
) -> None:
    """Each thread's moments in their order; calls are the first of the nodes, as ``rows``."""
    order = Moments(place, (time_ns - time_ns.min()) * len(_WHAT) + what).order
    call = np.where(order < rows.size, order, -1)
    node, place, time_ns, what = node[order], place[order], time_ns[order], what[order]
    follows = place[1:] == place[:-1]
    segment = np.append(rows, -1)[_next(call, place)][1:]
    waits = follows & (what[1:] == _RESUMES)  # a step can end within a wait
    calling = follows & (what[1:] == _RETURNS)
    own = follows & ~waits & ~calling
    made.edges(HOST, node[:-1][own], node[1:][own], np.diff(time_ns)[own], segment[own])
    made.edges(LAUNCH, node[:-1][calling], node[1:][calling], np.diff(time_ns)[calling])
    made.edges(WAIT, node[:-1][waits], node[1:][waits], 0)


def _start(
    made: Builder, mine: Calls, called: Int64, started: Int64, ended: Int64, ended_ns: Int64
) -> None:
    """From the call to the start; and from the operation before it on gloo's thread."""
    dispatch = mine.start_ns - mine.launch_ns
    order = Moments(mine.worker.astype(np.int64), mine.start_ns).order
    before, after = order[:-1], order[1:]
    queued = mine.worker[before] == mine.worker[after]
    queued &= mine.start_ns[after] >= ended_ns[before]
    queued &= ended_ns[before] > mine.launch_ns[after]
    lag = dispatch.copy()
    alone = np.delete(dispatch, after[queued])
    usual = int(median(alone if alone.size else dispatch))
    lag[after[queued]] = np.minimum(usual, dispatch[after[queued]])
    made.edges(LAUNCH, called, started, lag)
    made.edges(QUEUE, ended[before[queued]], started[after[queued]])


def _gaps(run: Measures, mine: Calls, place: Int64) -> Gaps:
    rank, thread, start, duration = map(
        run.rows("host_gaps").ints, ("rank", "thread", "start_ns", "duration_ns")
    )
    start, known = clock_offsets(run).on_run_clock(start, rank)
    # What both have gets the number that the calls', which come first, have by themselves.
    at = codes(np.append(mine.rank, rank), np.append(mine.thread, thread))[place.size :]
    rows = known & (at <= place.max())
    return Gaps.cut(at[rows], start[rows], (start + duration)[rows], place, mine.launch_ns)


def _step_bounds(run: Measures, mine: Calls, place: Int64) -> tuple[Int64, Int64, Int64, Bool]:
    """When each rank's first step begins and when its steps end, on the thread that calls most.

    Times, places, steps, and which are ends.
    """
    steps = profiler_steps(run)
    rank, step = steps.ints("rank"), steps.ints("step")
    start, known = clock_offsets(run).on_run_clock(steps.ints("start_ns"), rank)
    end = start + steps.ints("duration_ns")
    main = {}
    ranks = distinct(mine.rank)
    for its, rows in zip(ranks.tolist(), rows_of_each(mine.rank, ranks), strict=True):
        places, counts = np.unique(place[rows], return_counts=True)
        main[its] = int(places[counts.argmax()])
    at = np.asarray([main.get(its, -1) for its in rank.tolist()], dtype=np.int64)
    rows = np.flatnonzero(known & (at >= 0))
    rows = rows[np.lexsort((start[rows], rank[rows]))]
    first = rows[np.unique(rank[rows], return_index=True)[1]]
    both = np.concatenate((first, rows))
    is_end = np.repeat([False, True], [first.size, rows.size])
    return np.concatenate((start[first], end[rows])), at[both], step[both], is_end


def _next(call: Int64, place: Int64) -> Int64:
    """For each link of the chains, the next call of its thread at or behind it; -1 if none."""
    is_call = call >= 0
    before: Int64 = np.cumsum(is_call) - is_call
    of, at = np.append(call[is_call], -1)[before], np.append(place[is_call], -1)[before]
    return np.where(at == place, of, -1)
