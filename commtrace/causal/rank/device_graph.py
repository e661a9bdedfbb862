"""One rank's GPUs and host as a graph of what waits for what.

Nodes are launches, starts and ends of kernels and copies, and the host's waits for them. The time
of a node is the latest, over the edges into it, of the time of the edge's source plus its lag.
One edge into a node binds: the one that would be last if each took as long as is usual for its
kind. Its lag is what was measured, so that replaying the graph with the lags as they are gives
every measured time to the nanosecond. The others have the usual lag of their kind, or what time
there was if that is less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import Bool, Int64, distinct
from commtrace.causal.rank.device_nodes import START, Nodes
from commtrace.causal.rank.device_steps import in_other_steps
from commtrace.causal.rank.device_waits import (
    NEAR_NS,
    Pairs,
    awaited_at_once,
    collective_waits,
    recorded_waits,
    resumptions,
    told_nothing,
)
from commtrace.causal.rank.device_work import DeviceWork
from commtrace.causal.rank.moments import Moments
from commtrace.quantiles import quantile
from commtrace.table import Rows

__all__ = [
    "EDGES",
    "NODES",
    "DeviceGraph",
    "device_graph",
    "explained",
    "let_after",
]

Node = Literal["launch", "start", "end", "call", "resume"]
Edge = Literal[
    "run",
    "launch",
    "stream",
    "turn",
    "wait",
    "collective",
    "inferred_wait",
    "latent_wait",
    "resume",
    "call",
    "host",
    "handoff",
]
NODES: tuple[Node, ...] = get_args(Node)
EDGES: tuple[Edge, ...] = get_args(Edge)
"""Of several edges between two nodes the first kind here is kept."""

_LONGEST_NS = 20_000


class DeviceGraph(Struct, frozen=True):
    """The graph of one rank.

    Nodes are in topological order, which is that of their times but for rounding (2 us at most):
    each edge leads from a lower to a higher node. Edges are sorted by the node that they lead to,
    then by the one that they come from, so that one pass over them replays the graph. Nodes
    that no edge leads to keep their time.

    ``node_time_ns``
        when it happened, in Unix time on the rank's own clock.
    ``node_kind``
        the index in ``NODES``: ``launch``, where the host called for work of a GPU (a CUDA
        graph's kernels and copies share one); ``start`` and ``end`` of a kernel or copy;
        ``call``, where the host began to wait without launching anything; ``resume``, where it
        ceased to wait.
    ``node_table``, ``node_row``
        what the node is of: the row, from 0, in the rank's ``kernels`` (0), ``copies`` (1) or
        ``blocking_calls`` (2); of a launch the first that it launched.
    ``edge_from``, ``edge_to``
        nodes.
    ``edge_kind``
        the index in ``EDGES``:
        ``run``, from a start to its end;
        ``launch``, from the host's call;
        ``stream``, from the end before on the same stream;
        ``turn``, the same where nothing told it to wait for another;
        ``wait``, from another stream's end, as the profiler recorded it;
        ``collective``, as PyTorch makes one wait, or what called it, where no wait was recorded;
        ``inferred_wait``, from an end on another stream just before a start that nothing else
        explains, unless other steps contradict it;
        ``latent_wait``, an inferred one at the same place of another step;
        ``resume``, from the last work of a stream to the host that waited for it;
        ``call``, from the call by which it waited, which takes time of its own;
        ``host``, in the order of a host thread;
        ``handoff``, from another thread to one that was idle while that one worked.
    ``edge_lag_ns``
        how long after its source, at least, the edge lets its target happen. Below 0 only by
        rounding.
    ``edge_binds``
        whether it is the one that binds, of which there is one into each node that has any.
    ``usual_ns``
        the usual lag of each kind of edge: the lower quartile where it binds, or the least where
        it never does; 20 us at most, of ``stream`` and ``turn`` 6 us.
    """

    node_time_ns: Int64
    node_kind: npt.NDArray[np.int8]
    node_table: npt.NDArray[np.int8]
    node_row: Int64
    edge_from: Int64
    edge_to: Int64
    edge_kind: npt.NDArray[np.int8]
    edge_lag_ns: Int64
    edge_binds: Bool
    usual_ns: dict[Edge, int]

    @property
    def binding(self) -> Int64:
        """The edge that binds each node; -1 for one without any."""
        found = np.full(self.node_time_ns.size, -1)
        found[self.edge_to[self.edge_binds]] = np.flatnonzero(self.edge_binds)
        return found


def device_graph(tables: Mapping[str, Rows]) -> DeviceGraph:
    """The graph of one rank, from its rows of each table.

    Of these it reads ``kernels``, ``copies``, ``blocking_calls``, ``synchronisations`` and
    ``steps``, as ``device_work.rank_tables`` has them. Takes time in proportion to the rows, and
    to calls that block times streams.
    """
    work = DeviceWork.of(tables)
    syncs = tables["synchronisations"]
    waits = resumptions(work, tables["blocking_calls"], syncs)
    recorded = recorded_waits(work, syncs)
    is_recorded = recorded[0].size > 0
    ended, started = recorded if is_recorded else _of_collectives(work, tables["steps"], syncs)
    nodes = Nodes.of(work, waits, (ended, started))
    edges = _Edges(nodes)
    edges.add("run", nodes.start, nodes.end)
    edges.add("launch", nodes.launch, nodes.start)
    before, alone = _before(nodes, work.stream), told_nothing(work, syncs)
    edges.add("stream", before[~alone], nodes.start[~alone])
    edges.add("turn", before[alone], nodes.start[alone])
    edges.add("wait" if is_recorded else "collective", nodes.end[ended], nodes.start[started])
    inferred, latent = in_other_steps(work, _just_before(nodes, edges.graph(), work, alone))
    edges.add("inferred_wait", nodes.end[inferred[0]], nodes.start[inferred[1]])
    edges.add("latent_wait", nodes.end[latent[0]], nodes.start[latent[1]])
    for of, (work_row, number) in ((nodes.end, waits.ended), (nodes.start, waits.begun)):
        edges.add("resume", of[work_row], nodes.resume[number])
    edges.add("call", nodes.call, nodes.resume)
    edges.add("host", *nodes.in_order())
    edges.add("handoff", *nodes.handed_over())
    return edges.graph()


def _of_collectives(work: DeviceWork, steps: Rows, synchronisations: Rows) -> Pairs:
    """What waits for what since PyTorch makes collectives, and who calls them, wait."""
    before = collective_waits(work, steps)
    behind = awaited_at_once(work, steps, synchronisations)
    return np.append(before[0], behind[0]), np.append(before[1], behind[1])


def let_after(lag_ns: Int64, usual_ns: Int64, binds: Bool) -> Int64:
    """How long after its source each edge lets its target happen, with lags that were measured."""
    return np.where(binds, lag_ns, np.minimum(lag_ns, usual_ns))


class _Edges:
    """Edges in the making."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._parts: list[tuple[Int64, Int64, Int64]] = []

    def add(self, kind: Edge, source: Int64, target: Int64) -> None:
        """Edges of one kind; those from no node, or against the order of nodes, are none."""
        forward = (source >= 0) & (source < target)
        kinds = np.full(int(forward.sum()), EDGES.index(kind))
        self._parts.append((source[forward], target[forward], kinds))

    def graph(self) -> DeviceGraph:
        """All edges, of several between two nodes the first kind."""
        nodes = self._nodes
        source, target, kind = map(np.concatenate, zip(*self._parts, strict=True))
        order = np.argsort((target * nodes.time_ns.size + source) * len(EDGES) + kind)
        new = np.ones(order.size, dtype=np.bool_)
        new[1:] = (np.diff(source[order]) != 0) | (np.diff(target[order]) != 0)
        order = order[new]
        source, target, kind = source[order], target[order], kind[order]
        lag_ns = nodes.time_ns[target] - nodes.time_ns[source]
        usual_ns = _usual(kind, lag_ns, _last(target, nodes.time_ns[source]))
        # A call that feeds a copy is done with it, however many calls take as long.
        feeds = (kind == EDGES.index("resume")) & (nodes.kind[source] == START)
        arrival_ns = nodes.time_ns[source] + np.where(feeds, lag_ns, usual_ns[kind])
        binds = _last(target, arrival_ns)
        return DeviceGraph(
            node_time_ns=nodes.time_ns,
            node_kind=nodes.kind.astype(np.int8),
            node_table=nodes.table.astype(np.int8),
            node_row=nodes.row,
            edge_from=source,
            edge_to=target,
            edge_kind=kind.astype(np.int8),
            edge_lag_ns=let_after(lag_ns, usual_ns[kind], binds),
            edge_binds=binds,
            usual_ns=dict(zip(EDGES, usual_ns.tolist(), strict=True)),
        )


def _last(target: Int64, arrival_ns: Int64) -> Bool:
    """Which edge into each target arrives last, the last one of several; targets are in order."""
    begins = np.flatnonzero(np.diff(target, prepend=-1))
    latest = np.maximum.reduceat(arrival_ns, begins)
    at = np.flatnonzero(arrival_ns == np.repeat(latest, np.diff(np.append(begins, target.size))))
    last = np.zeros(target.size, dtype=np.bool_)
    last[at[np.append(np.diff(target[at]) != 0, True)[: at.size]]] = True
    return last


def _usual(kind: Int64, lag_ns: Int64, binds: Bool) -> Int64:
    """The lower quartile of the lags of each kind where it binds, or the least of all.

    Of lags that nothing explains the quartile would be too long: a GPU takes less by itself.
    """
    usual = np.zeros(len(EDGES), dtype=np.int64)
    for number in distinct(kind).tolist():
        its = lag_ns[(kind == number) & binds]
        usual[number] = _quartile(its) if its.size else lag_ns[kind == number].min()
    on_stream = [EDGES.index("stream"), EDGES.index("turn")]
    usual[on_stream] = np.minimum(usual[on_stream], NEAR_NS)
    return np.minimum(usual, _LONGEST_NS)


def _quartile(values: Int64) -> float:
    """The lower one as ``np.percentile`` has it, which takes long over few values."""
    low, part = divmod(values.size - 1, 4)
    near = np.partition(values, (low, min(low + 1, values.size - 1)))[low : low + 2]
    return float(near[0] + (near[-1] - near[0]) * (part / 4))


def _before(nodes: Nodes, stream: Int64) -> Int64:
    """For each start the last end before it on the same stream; -1 where there is none."""
    last = Moments(stream, nodes.end).last(stream, nodes.start)
    return np.append(nodes.end, -1)[last]


def _just_before(nodes: Nodes, graph: DeviceGraph, work: DeviceWork, alone: Bool) -> Pairs:
    """Work that no edge so far explains the start of, and what ended on another stream before.

    Soon before: as long as known waits take, and 6 us. What nothing told to wait, ``alone``, waits
    for an operation, or one for it, where the recording of that is lost; for nothing else.
    """
    edge = graph.binding[nodes.start]
    usual_ns = np.append([graph.usual_ns[kind] for kind in EDGES], 0)[graph.edge_kind[edge]]
    late = (edge >= 0) & (graph.edge_lag_ns[edge] - usual_ns > NEAR_NS)
    started = np.flatnonzero(late)
    by_end = np.argsort(nodes.end)
    last = np.searchsorted(nodes.end[by_end], nodes.start[started]) - 1
    ended = by_end[last]
    waits = np.isin(graph.edge_kind, [EDGES.index("wait"), EDGES.index("collective")])
    known_ns = graph.edge_lag_ns[waits & graph.edge_binds]
    soon_ns = NEAR_NS + min(quantile(known_ns, 0.25), _LONGEST_NS) if known_ns.size else NEAR_NS
    apart_ns = nodes.time_ns[nodes.start[started]] - nodes.time_ns[nodes.end[ended]]
    near = (last >= 0) & (apart_ns <= soon_ns)
    near &= ~alone[started] | (work.communicates[started] != work.communicates[ended])
    return ended[near], started[near]


def explained(graph: DeviceGraph, within_ns: int = NEAR_NS) -> dict[str, dict[str, int]]:
    """How many starts, and how many of the host's resumptions, each kind of edge explains.

    That is where an edge of the kind binds with a lag up to ``within_ns``; of ``launch`` and
    ``call``, the host's own work, and of ``turn``, where there is nothing but the device to
    wait for, with whatever lag was measured. ``unexplained`` are those that another kind binds
    with a longer one, ``first`` those that nothing comes before.
    """
    counts: dict[str, dict[str, int]] = {}
    for node in ("start", "resume"):
        edge = graph.binding[graph.node_kind == NODES.index(node)]
        bound = edge[edge >= 0]
        kind = graph.edge_kind[bound]
        own = np.isin(kind, [EDGES.index(name) for name in ("launch", "call", "turn")])
        near = own | (graph.edge_lag_ns[bound] <= within_ns)
        each = np.bincount(kind[near], minlength=len(EDGES)).tolist()
        counts[node] = {str(name): n for name, n in zip(EDGES, each, strict=True) if n}
        counts[node] |= {"unexplained": int((~near).sum()), "first": edge.size - bound.size}
    return counts
