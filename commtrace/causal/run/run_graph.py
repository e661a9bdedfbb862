"""The graph of a whole run: every rank's own part, joined by the operations that they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commtrace.arrays import NULL, Float64, Int32, Int64, distinct
from commtrace.causal.replay.graph import Graph
from commtrace.causal.run.builder import COPY, DEVICE, DEVICES, HOSTS, JOIN, TRANSFER, Builder
from commtrace.causal.run.calls import Calls, calls
from commtrace.causal.run.gpu_part import add_gpus
from commtrace.causal.run.host_part import add_hosts
from commtrace.causal.run.meetings import meetings, transfers_ns
from commtrace.causal.run.step_bounds import begin_ns, steps_of_run
from commtrace.causal.run.step_ends import StepEnds
from commtrace.diagnosis import CannotLook
from commtrace.heap import passing
from commtrace.measures import measure
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["RunGraph", "run_graph"]

_CUT = 0.1  # of a step


@dataclass(frozen=True, eq=False)
class RunGraph:
    """The graph, and which of its nodes and edges are what.

    ``calls`` are those in it; ``started``, ``met`` and ``ended`` their nodes: when each began, when
    all were there whom it needs, which calls of an operation may share, and when it was done.
    ``rank`` is each node's, -1 of a meeting. ``steps`` are numbers, ``ends`` has for each the
    nodes that it ends with, the last of them; ``begin_ns`` is when the first step began on its
    last rank, and its devices were done with what was before, ``over_ns`` when the last was over:
    on CPUs its end is its last joint operation's.
    ``own_bits`` has a bit for each edge: whether it is part of a segment; ``own_call`` the call
    whose segment each of these is part of, the next of its rank. ``explained`` is the share of
    starts on GPUs that follow what an edge says they waited for; 1 without GPUs.
    """

    graph: Graph
    calls: Calls
    started: Int32
    met: Int32
    ended: Int32
    rank: npt.NDArray[np.signedinteger[Any]]
    steps: tuple[int, ...]
    ends: tuple[Int32, ...]
    begin_ns: int
    over_ns: int
    own_bits: npt.NDArray[np.uint8]
    own_call: Int32
    explained: float

    @cached_property
    def end_ns(self) -> Int64:
        """When each step ended."""
        ends = [self.graph.time_ns[nodes].max() for nodes in self.ends]
        return np.maximum.accumulate(np.asarray(ends, dtype=np.int64))

    @passing
    def step_of(self) -> Int64:
        """Of each call which of ``steps`` it is of; without a number that in which it was done."""
        done = np.searchsorted(self.end_ns, self.graph.time_ns[self.ended])
        number = self.calls.step
        step = np.where(number == NULL, done, np.searchsorted(self.steps, number))
        return np.minimum(step, len(self.steps) - 1)

    @property
    def cells(self) -> tuple[Int32, tuple[Int64, Int64]]:
        """The ranks in order, and of each call which of them and which of ``steps`` it is of."""
        ranks: Int32 = distinct(self.calls.rank)
        return ranks, (np.searchsorted(ranks, self.calls.rank), self.step_of)

    def by_cell(self, time_ns: Int32 | Int64 | Float64) -> tuple[Int32, Float64]:
        """The ranks in order, and the sums of a time of each call: ranks × steps."""
        ranks, (rank, step) = self.cells
        shape = ranks.size, len(self.steps)
        sums = np.bincount(rank * shape[1] + step, time_ns, shape[0] * shape[1])
        return ranks, np.asarray(sums.reshape(shape), dtype=np.float64)

    @passing
    def step_ends(self) -> StepEnds:
        """What each step ends with: also the operations that were done within it.

        Ranks that are steps ahead have operations within it that are not of it.
        """
        step = np.searchsorted(self.end_ns, self.graph.time_ns[self.ended])
        step = np.maximum(step, np.searchsorted(self.steps, self.calls.step))
        inside = step < len(self.ends)
        return StepEnds(self.graph, self.ends, self.ended[inside], step[inside])

    @passing
    def own(self) -> Int32:
        """The edges that are part of a segment."""
        is_own = np.unpackbits(self.own_bits, count=self.graph.kind.size)
        return np.flatnonzero(is_own).astype(np.int32)

    @passing
    def own_column(self) -> npt.NDArray[np.int8]:
        """Which column of own work each of these edges is of."""
        on_device = np.isin(self.graph.kind[self.own], (DEVICE, COPY))
        return np.where(on_device, DEVICES, HOSTS).astype(np.int8)

    def own_of(self, edges: Int32 | Int64) -> Int64:
        """Which of the edges that are part of a segment some edges are; -1 for others."""
        at = np.searchsorted(self.own, edges)
        return np.where(np.append(self.own, -1)[at] == edges, at, -1)

    @property
    def call_of(self) -> Int32:
        """The call that a node is the start or end of; -1 for other moments."""
        found = np.full(self.graph.time_ns.size, -1, dtype=np.int32)
        for nodes in (self.started, self.ended):
            found[nodes] = np.arange(nodes.size)
        return found

    @passing
    def transfers(self) -> tuple[Int64, Int64]:
        """The edges of transfers within the steps, and the call that each is of."""
        graph = self.graph
        edges = np.flatnonzero(graph.kind == TRANSFER)
        source, target = graph.source[edges], graph.target[edges]
        call = self.call_of[target].astype(np.int64)
        shared = np.bincount(self.ended, minlength=graph.time_ns.size) > 1
        mine, calls = np.flatnonzero(shared[target]), np.flatnonzero(shared[self.ended])
        mine = mine[np.lexsort((source[mine], target[mine]))]
        call[mine] = calls[np.lexsort((self.met[calls], self.ended[calls]))]
        of_steps = graph.time_ns[target] > self.begin_ns
        return edges[of_steps], call[of_steps]

    @property
    def joins(self) -> tuple[Int64, Int64]:
        """The edges from calls to what waits for them, and the call that each is from."""
        edges = np.flatnonzero(self.graph.kind == JOIN)
        call = self.call_of[self.graph.source[edges]].astype(np.int64)
        return edges[call >= 0], call[call >= 0]

    @passing
    def last_done(self) -> Int32:
        """What the run may end with: its last step's ends, and operations that are done by then."""
        joint = self.ended[self.graph.time_ns[self.ended] <= self.end_ns[-1]]
        return np.concatenate((self.ends[-1], joint))

    @property
    def transfer_ns(self) -> Int64:
        """How long each call took once all were there."""
        return self.graph.time_ns[self.ended] - self.graph.time_ns[self.met]

    @property
    def is_cut(self) -> bool:
        """Whether much of the last step lies behind its last joint operation."""
        return self.over_ns - int(self.end_ns[-1]) > _CUT * median(self.step_ns)

    @property
    def step_ns(self) -> Int64:
        """How long each step was: from the end of the one before to its own."""
        return np.diff(self.end_ns, prepend=self.begin_ns)

    def __getstate__(self) -> dict[str, object]:
        """Without what follows from the rest, which is made again faster than it is sent."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


@measure
def run_graph(run: Measures) -> RunGraph:
    """The graph of a run. CannotLook without a clock in common, or with times that contradict.

    Of ranks that use a GPU it holds what runs there, of the others what runs on their CPU.
    """
    every = calls(run)
    with_gpu = distinct(every.rank[~every.on_cpu])
    beside = every.on_cpu & np.isin(every.rank, with_gpu)
    mine = every.taken(~beside) if beside.any() else every
    if (mine.on_cpu & (mine.thread == NULL)).any():
        raise CannotLook("needs the calls of the operations, which the trace lacks")
    if not mine.rank.size:
        raise CannotLook("needs communication")
    made = Builder(mine)
    on_host = np.flatnonzero(mine.on_cpu)
    if on_host.size:
        add_hosts(run, made, on_host)
    if on_host.size < mine.rank.size:
        add_gpus(run, made, np.flatnonzero(~mine.on_cpu))
    met = meetings(made, mine)
    made.edges(TRANSFER, met, made.ended, transfers_ns(run, mine))
    whole = made.graph()
    if whole is None:
        raise CannotLook("needs times that can be: by these, operations wait for themselves")
    graph, node, own_bits, own_call = whole
    ended = node[made.ended]
    numbers, ends, over_ns = steps_of_run(made, graph, node, ended)
    return RunGraph(
        graph,
        mine,
        node[made.started],
        node[met],
        ended,
        made.ranks(node),
        numbers,
        ends,
        begin_ns(run, mine, int(graph.time_ns[ends[0]].max())),
        over_ns,
        own_bits,
        own_call,
        made.explained / made.starts if made.starts else 1.0,
    )
