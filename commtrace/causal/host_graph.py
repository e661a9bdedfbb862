"""The graph of ranks that communicate from the CPU: host threads, gloo's threads, operations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commtrace.arrays import NULL, Int64, integers
from commtrace.causal.calls import Calls, calls
from commtrace.causal.graph import Graph
from commtrace.causal.joins import Gaps, joins
from commtrace.matching import on_run_clock
from commtrace.measures import measure
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["HOST", "JOIN", "MEET", "QUEUE", "START", "TRANSFER", "WAIT", "RunGraph", "run_graph"]

HOST, WAIT, START, QUEUE, MEET, TRANSFER, JOIN = range(7)
"""Kinds of edges: a host's own work; from a wait's beginning to its end; from call to start;
from the operation before on gloo's thread; from a start to where all are there; from there to
the end; from the end to the host that waited."""

_PARTS = 10  # of a run without steps


@dataclass(frozen=True, eq=False)
class RunGraph:
    """The graph, and which of its nodes and edges are what.

    ``calls`` are those in it; ``called``, ``started``, ``met`` and ``ended`` their nodes, one
    each; ``rank`` is each node's. ``steps`` are numbers, ``ends`` has for each the nodes that it
    ends with, the last of them; ``begin_ns`` is when the first step began on its last rank.
    ``segment`` is, of edges of the kind HOST, the call whose segment it is part of: the next of
    its thread; -1 behind the last. ``operation`` is the code of the column ``op`` that an edge
    is of, -1 for the host's own.
    """

    graph: Graph
    calls: Calls
    called: Int64
    started: Int64
    met: Int64
    ended: Int64
    rank: Int64
    steps: tuple[int, ...]
    ends: tuple[Int64, ...]
    begin_ns: int
    segment: Int64
    operation: Int64

    @cached_property
    def end_ns(self) -> Int64:
        """When each step ended."""
        return np.asarray([self.graph.time_ns[nodes].max() for nodes in self.ends], dtype=np.int64)

    @cached_property
    def call_of(self) -> Int64:
        """The call that a node is of, its start or end; -1 for other moments."""
        found = np.full(self.graph.time_ns.size, -1)
        for nodes in (self.started, self.met, self.ended):
            found[nodes] = np.arange(nodes.size)
        return found

    @cached_property
    def transfer_ns(self) -> Int64:
        """How long each call took once all were there."""
        return self.graph.time_ns[self.ended] - self.graph.time_ns[self.met]

    @property
    def step_ns(self) -> Int64:
        """How long each step was: from the end of the one before to its own."""
        return np.diff(self.end_ns, prepend=self.begin_ns)


@measure
def run_graph(run: Measures) -> RunGraph:
    """The graph of a run on CPUs."""
    every = calls(run)
    mine = every.taken(every.on_cpu)
    place = _places(mine.rank, mine.thread)
    gaps = _gaps(run, mine, place)
    joined = joins(mine, place, gaps)
    return _built(run, mine, place, gaps, joined.gap)


def _places(rank: Int64, thread: Int64) -> Int64:
    """Rank and thread as one number that keeps their order."""
    both = np.stack((rank, thread), axis=1)
    return np.unique(both, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _gaps(run: Measures, mine: Calls, place: Int64) -> Gaps:
    table = run.host_gaps
    rank, thread = integers(table["rank"]), integers(table["thread"])
    start, duration = integers(table["start_ns"]), integers(table["duration_ns"])
    start, known = on_run_clock(start, rank, matched(run).clock)
    threads = np.unique(np.stack((mine.rank, mine.thread), axis=1), axis=0)
    of = {(its, number): at for at, (its, number) in enumerate(threads.tolist())}
    keys = zip(rank.tolist(), thread.tolist(), strict=True)
    at = np.asarray([of.get(key, -1) for key in keys], dtype=np.int64)
    rows = known & (at >= 0)
    return Gaps.cut(at[rows], start[rows], (start + duration)[rows], place, mine.launch_ns)


class _Nodes:
    """Nodes in the making: a block of them at a time."""

    def __init__(self) -> None:
        self.times: list[Int64] = []
        self.ranks: list[Int64] = []
        self.count = 0

    def add(self, time_ns: Int64, rank: Int64) -> Int64:
        """More of them; their numbers."""
        self.times.append(time_ns)
        self.ranks.append(rank)
        self.count += time_ns.size
        return np.arange(self.count - time_ns.size, self.count)


class _Edges:
    """Edges in the making, each with its lag, or with the most that it can be."""

    def __init__(self) -> None:
        self.parts: list[tuple[Int64, Int64, Int64, Int64, Int64]] = []

    def add(
        self, kind: int, source: Int64, target: Int64, lag_ns: Int64, segment: Int64 | None = None
    ) -> None:
        """More of one kind."""
        of = np.full(source.size, -1) if segment is None else segment
        self.parts.append((source, target, lag_ns, np.full(source.size, kind), of))

    def all(self) -> list[npt.NDArray[np.int64]]:
        """Their columns."""
        return [np.concatenate([part[i] for part in self.parts]) for i in range(5)]


def _built(run: Measures, mine: Calls, place: Int64, gaps: Gaps, gap: Int64) -> RunGraph:
    nodes, edges = _Nodes(), _Edges()
    used = np.unique(gap[gap >= 0])
    at_gap = np.searchsorted(used, gap)
    # An operation that its thread waited for was done when that ran on, however late gloo notes it.
    made = gap >= 0
    ended_ns = np.where(
        made, np.minimum(mine.end_ns, np.maximum(gaps.end_ns[gap], mine.start_ns)), mine.end_ns
    )
    wait_ns = gaps.start_ns[used]
    resume_ns = wait_ns.copy()
    np.maximum.at(resume_ns, at_gap[made], ended_ns[made])
    resume_ns = np.minimum(np.maximum(resume_ns, wait_ns), np.maximum(gaps.end_ns[used], wait_ns))
    ended_ns = np.where(
        made,
        np.minimum(ended_ns, resume_ns[np.minimum(at_gap, max(used.size - 1, 0))])
        if used.size
        else ended_ns,
        ended_ns,
    )
    gap_rank = np.zeros(used.size, np.int64)
    first_of_place = np.unique(place, return_index=True)
    gap_rank = mine.rank[first_of_place[1][np.searchsorted(first_of_place[0], gaps.place[used])]]
    called = nodes.add(mine.launch_ns, mine.rank)
    started = nodes.add(mine.start_ns, mine.rank)
    met = nodes.add(mine.last_ns, mine.rank)
    ended = nodes.add(ended_ns, mine.rank)
    waits = nodes.add(wait_ns, gap_rank)
    resumes = nodes.add(resume_ns, gap_rank)
    bound_ns, bound_rank, bound_step, bound_place, is_end = _step_bounds(run, mine, place)
    boundary = nodes.add(bound_ns, bound_rank)
    # The host's chain: calls, waits and the ends of steps of each thread, in their order.
    chain = np.concatenate((called, waits, resumes, boundary))
    chain_place = np.concatenate((place, gaps.place[used], gaps.place[used], bound_place))
    times = np.concatenate((mine.launch_ns, wait_ns, resume_ns, bound_ns))
    turn = np.repeat([1, 2, 3, 0], [called.size, waits.size, resumes.size, boundary.size])
    order = np.lexsort((turn, times, chain_place))
    chain, chain_place, times, turn = chain[order], chain_place[order], times[order], turn[order]
    follows = chain_place[1:] == chain_place[:-1]
    call_at = np.full(nodes.count, -1)
    call_at[called] = np.arange(called.size)
    segment = _next(call_at[chain], chain_place)
    is_wait = (turn[1:] == 3) & (turn[:-1] == 2)
    lag = times[1:] - times[:-1]
    for kind, which in ((HOST, follows & ~is_wait), (WAIT, follows & is_wait)):
        its = np.where(kind == HOST, segment[1:], -1)
        edges.add(
            kind,
            chain[:-1][which],
            chain[1:][which],
            np.where(kind == WAIT, 0, lag)[which],
            its[which],
        )
    edges.add(JOIN, ended[made], resumes[at_gap[made]], np.zeros(int(made.sum()), np.int64))
    _add_operations(mine, edges, called, started, met, ended, ended_ns)
    source, target, lags, kind, of = edges.all()
    time = np.concatenate(nodes.times)
    graph = Graph(time, source, target, _binding(time, source, target, lags), kind.astype(np.int8))
    numbers, ends = _ends(mine, ended, boundary[is_end == 1], bound_step[is_end == 1], time)
    return RunGraph(
        graph,
        mine,
        called,
        started,
        met,
        ended,
        np.concatenate(nodes.ranks),
        numbers,
        ends,
        _begin(run, mine),
        of,
        _operation(run, mine, graph, (started, met, ended)),
    )


def _operation(run: Measures, mine: Calls, graph: Graph, ends: tuple[Int64, ...]) -> Int64:
    """The code of the operation whose start, meeting or end an edge leads to."""
    code = np.full(graph.time_ns.size, -1)
    for nodes in ends:
        code[nodes] = run.collectives["op"].cat.codes.to_numpy()[mine.row]
    return np.where(graph.kind == JOIN, code[graph.source], code[graph.target])


def _ends(
    mine: Calls, ended: Int64, boundary: Int64, step: Int64, time: Int64
) -> tuple[tuple[int, ...], tuple[Int64, ...]]:
    """The nodes that each step ends with; of the last one, or without steps, joint operations."""
    numbers = np.unique(step)
    if numbers.size:
        inside = ended[mine.step <= numbers[-1]] if (mine.step != NULL).any() else ended
        ends = *(boundary[step == number] for number in numbers[:-1]), inside
        return tuple(numbers.tolist()), ends
    order = np.argsort(time[ended], kind="stable")
    tenths = np.array_split(order, max(min(_PARTS, order.size), 1))
    return tuple(range(len(tenths))), tuple(ended[tenth] for tenth in tenths)


def _begin(run: Measures, mine: Calls) -> int:
    steps = run.steps[run.steps["label"].isna() & run.steps["step"].notna()]
    if not len(steps):
        return int(mine.launch_ns.min(initial=np.iinfo(np.int64).max))
    first = steps[steps["step"] == steps["step"].min()]
    start, _ = on_run_clock(
        integers(first["start_ns"]), integers(first["rank"]), matched(run).clock
    )
    return int(start.max())


def _add_operations(
    mine: Calls,
    edges: _Edges,
    called: Int64,
    started: Int64,
    met: Int64,
    ended: Int64,
    ended_ns: Int64,
) -> None:
    """From the call to the end of each operation."""
    dispatch = mine.start_ns - mine.launch_ns
    usual = np.full(dispatch.size, np.median(dispatch) if dispatch.size else 0).astype(np.int64)
    order = np.lexsort((mine.start_ns, mine.worker))
    before, after = order[:-1], order[1:]
    queued = (mine.worker[before] == mine.worker[after]) & (
        mine.start_ns[after] >= ended_ns[before]
    )
    queued &= ended_ns[before] > mine.launch_ns[after]
    waits_in_queue = np.zeros(dispatch.size, np.bool_)
    waits_in_queue[after[queued]] = True
    edges.add(
        START, called, started, np.where(waits_in_queue, np.minimum(usual, dispatch), dispatch)
    )
    edges.add(
        QUEUE,
        ended[before[queued]],
        started[after[queued]],
        mine.start_ns[after[queued]] - ended_ns[before[queued]],
    )
    source, target = _needed(mine)
    edges.add(MEET, started[source], met[target], np.zeros(source.size, np.int64))
    edges.add(TRANSFER, met, ended, ended_ns - mine.last_ns)


def _needed(mine: Calls) -> tuple[Int64, Int64]:
    """For each call, the calls that have to have started before its data can be there."""
    order = np.argsort(mine.operation, kind="stable")
    number = mine.operation[order]
    begins = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
    sizes = np.diff(np.append(begins, number.size))
    size_of = np.repeat(sizes, sizes)
    target = np.repeat(order, size_of)
    offset = np.arange(target.size) - np.repeat(np.cumsum(size_of) - size_of, size_of)
    source = order[np.repeat(np.repeat(begins, sizes), size_of) + offset]
    own = source == target
    from_root = mine.is_root[source] | ~mine.from_root[target]
    to_root = mine.is_root[target] | ~mine.to_root[target]
    needs = own | (from_root & to_root & (mine.start_ns[source] <= mine.last_ns[target]))
    return source[needs], target[needs]


def _step_bounds(
    run: Measures, mine: Calls, place: Int64
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """When each rank's steps begin and end, on the thread that calls most of its communication.

    Times, ranks, steps and places, and 0 where a rank's first step begins, 1 where one ends.
    """
    steps = run.steps[run.steps["label"].isna() & run.steps["step"].notna()]
    rank, step = integers(steps["rank"]), integers(steps["step"])
    start, known = on_run_clock(integers(steps["start_ns"]), rank, matched(run).clock)
    end = start + integers(steps["duration_ns"])
    main = {}
    for its in np.unique(mine.rank).tolist():
        places, counts = np.unique(place[mine.rank == its], return_counts=True)
        main[its] = int(places[counts.argmax()])
    at = np.asarray([main.get(its, -1) for its in rank.tolist()], dtype=np.int64)
    rows = np.flatnonzero(known & (at >= 0))
    rows = rows[np.lexsort((start[rows], rank[rows]))]
    first = rows[np.unique(rank[rows], return_index=True)[1]]
    both = np.concatenate((first, rows))
    is_end = np.repeat([0, 1], [first.size, rows.size])
    return np.concatenate((start[first], end[rows])), rank[both], step[both], at[both], is_end


def _next(call: Int64, place: Int64) -> Int64:
    """For each link of the chains, the next call of its thread at or behind it; -1 if none."""
    positions = np.where(call >= 0, np.arange(call.size), call.size)
    following = np.minimum.accumulate(positions[::-1])[::-1]
    found = following < call.size
    at = np.where(found, following, 0)
    return np.where(found & (place[at] == place), call[at], -1)


def _binding(time: Int64, source: Int64, target: Int64, lag: Int64) -> Int64:
    """The lags, none of which would make its target later than it was; and one of which binds."""
    lag = np.minimum(lag, time[target] - time[source])
    latest = np.full(time.size, np.iinfo(np.int64).min)
    np.maximum.at(latest, target, time[source] + lag)
    short = latest[target] < time[target]
    # The one that came last gets what was measured.
    last = np.full(time.size, np.iinfo(np.int64).min)
    np.maximum.at(last, target[short], (time[source] + lag)[short])
    binds = short & (time[source] + lag == last[target])
    return np.where(binds, time[target] - time[source], lag)
