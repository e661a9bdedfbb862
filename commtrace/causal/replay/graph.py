"""The run as a graph: moments, and what each had to wait for.

``time[v]`` is the largest ``time[u] + lag`` over the edges u -> v. With the lags as they were
measured every moment is where the trace has it; an edit changes lags, and ``replay`` says
when everything would have been.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt

from commtrace.arrays import Int32, Int64, distinct, narrow, sorted_by
from commtrace.causal.replay.arrange import order_of
from commtrace.causal.replay.chain_nodes import ChainNodes
from commtrace.causal.replay.edge_ends import Sources, Targets
from commtrace.causal.replay.node_times import NodeTimes
from commtrace.causal.replay.plan import Plan
from commtrace.causal.replay.ways import NOTHING, Later, Levels, Ways

__all__ = [
    "DROPPED",
    "Change",
    "Graph",
    "Lags",
    "Latest",
    "arranged",
    "changed",
    "changes",
    "longest_path",
    "replay",
    "replayed",
]

DROPPED = -(2**50)
"""The lag of an edge that an edit takes away."""
Lags = Int32 | Int64
"""A lag for each edge, in 32 bits where they fit."""
Change = tuple[Int32 | Int64, Int64]
"""Edges, and the lags that they get by an edit."""
_AT_ONCE = 16  # edits
_ANEW_AT_ONCE = 4  # edits, each with a time for every node
_ANEW_BYTES = 1 << 24  # of these
_MOST_BYTES = 1 << 26  # of what is known of heads with these
_PART = 1 << 14  # nodes
_MANY = 1 / 32  # of the edges
_KNOWN = -1


@dataclass(frozen=True)
class Graph:
    """Nodes with the ``time_ns`` that was measured; edges with kind and lag.

    ``source`` and ``target`` are nodes; of the edges to a node at least one binds:
    ``time_ns[source] + lag_ns`` is its time, and no other's is later. Nodes without edges to
    them stay where they were. All but ``replay`` take nodes and edges to be in the order in which
    they are replayed: ``arranged`` makes such a graph of any.
    """

    time_ns: Int64 | NodeTimes
    source: Int32 | Sources
    target: Int32 | Targets
    lag_ns: Lags
    kind: npt.NDArray[np.int8]

    @cached_property
    def plan(self) -> Plan:
        """How to replay it."""
        order = order_of(self.time_ns[:], self.source[:], self.target[:])
        if order is None or any((np.diff(its) < 0).any() for its in (order.node, order.edges)):
            raise ValueError("a graph that is not arranged")
        return Plan(self, order)

    def __getstate__(self) -> dict[str, object]:
        """Without the plan, which is made again faster than it is sent."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def arranged(
    time_ns: Int64 | NodeTimes,
    source: Int32,
    target: Int32,
    lag_ns: Lags,
    kind: npt.NDArray[np.int8],
) -> tuple[Graph, Int32, Int32] | None:
    """The graph of nodes and edges in any order; the new number of each node, and of each edge.

    Edges but for their ``target`` are changed in place. None where nodes wait for themselves.
    """
    order = order_of(time_ns, source, target)
    if order is None:
        return None
    time = np.empty(time_ns.size, dtype=np.int64)
    time[order.node] = time_ns[:]
    source[:] = order.node[source[order.edges]]
    lag_ns[:] = lag_ns[order.edges]
    kind[:] = kind[order.edges]
    targets = Targets(order.first, order.levels)
    sources = Sources(source, order.first, targets)
    graph = Graph(NodeTimes(time), sources, targets, lag_ns, kind)
    graph.__dict__["plan"] = Plan(graph, order)  # which else would find the same order again
    edge = np.empty_like(order.edges)
    edge[order.edges] = np.arange(edge.size, dtype=np.int32)
    return graph, order.node, edge


def replay(graph: Graph, lags: Int64) -> Int64:
    """The time of every node with other lags: ``lags`` is edges × edits, the answer nodes × edits.

    Of a graph in any order. Linear in nodes, edges and edits. Raises ValueError where nodes wait
    for themselves.
    """
    columns = (getattr(graph, name)[:].copy() for name in Graph.__dataclass_fields__)
    if (its := arranged(*columns)) is None:
        raise ValueError("nodes wait for themselves")
    in_order, node, edge = its
    found = np.empty((graph.time_ns.size, lags.shape[1]), dtype=np.int64)
    arranged_ns = np.empty_like(lags, shape=in_order.lag_ns.size)
    for edit, lag in enumerate(lags.T):
        arranged_ns[edge] = lag
        found[:, edit] = in_order.plan.times(arranged_ns)[node]
    return found


def replayed(graph: Graph, lag_ns: Lags) -> Int64:
    """The time of every node with the lags of one edit; as measured with those of the graph."""
    return graph.time_ns[:] if lag_ns is graph.lag_ns else graph.plan.times(lag_ns)


def changes(lag_ns: Lags, edited_ns: Lags) -> Change:
    """What an edit changes of these lags."""
    edges = np.flatnonzero(edited_ns != lag_ns)
    return edges, edited_ns[edges].astype(np.int64)


def changed(lag_ns: Lags, change: Change) -> Lags:
    """These lags with a change, as a new array."""
    edges, by = change
    lag: Lags = lag_ns.astype(np.result_type(lag_ns, narrow(by)))
    lag[edges] = by
    return lag


class Latest:
    """When the last of some nodes of each group happens; groups are numbered from 0."""

    def __init__(self, graph: Graph, node: Int64, group: Int64) -> None:
        self._graph, plan = graph, graph.plan
        order = sorted_by(group)
        self._node = ChainNodes(plan.first, node[order].astype(np.int32))
        group = group[order]
        self._groups = np.flatnonzero(np.diff(group, prepend=-1))
        parts = distinct(np.append(self._groups, np.arange(0, node.size, _PART)))
        one, size = np.ones(parts.size, dtype=np.int64), np.diff(np.append(parts, node.size))
        levels = Levels(parts, plan.count + np.arange(parts.size), one, size)
        self._parts = np.searchsorted(parts, self._groups)
        self._ways = Ways(self._node, levels, graph.time_ns.size)
        self._count = parts.size

    def replayed(self, lag_ns: Lags, changes: Iterable[Change]) -> Int64:
        """With each of some changes of these lags: groups × edits."""
        graph = self._graph
        is_measured = lag_ns is graph.lag_ns
        many = _MANY * graph.lag_ns.size

        def how(change: Change) -> int:
            return _KNOWN if is_measured and not change[0].size else int(change[0].size > many)

        found = [np.empty((self._groups.size, 0), dtype=np.int64)]
        for by, some in groupby(changes, how):
            if by == _KNOWN:
                found += [self.at(graph.time_ns)[:, None] for _ in some]
            elif by:  # what is told by edge costs more than all anew
                found += self._anew(lag_ns, some)
            else:
                found += self._followed(lag_ns, some)
        return np.concatenate(found, axis=1)

    def _anew(self, lag_ns: Lags, edits: Iterator[Change]) -> Iterator[Int64]:
        plan = self._graph.plan
        at_once = min(max(_ANEW_BYTES // (4 * self._graph.time_ns.size), 1), _ANEW_AT_ONCE)
        for some in _some_at_once(edits, at_once, lag_ns.size * at_once):
            each = (plan.behind(lag_ns, (change[0], _more(lag_ns, change))) for change in some)
            behind, later = zip(*each, strict=True)
            yield self._latest(behind, lag_ns, later, [NOTHING] * len(some))

    def _followed(self, lag_ns: Lags, edits: Iterator[Change]) -> Iterator[Int64]:
        plan = self._graph.plan
        behind, _ = plan.behind(lag_ns)
        at_once = min(max(_MOST_BYTES // (8 * (plan.count + self._count)), 1), _AT_ONCE)
        for some in _some_at_once(edits, at_once, _MANY * lag_ns.size):
            later, ends = [], []
            for change in some:
                nodes, ways = plan.later(change[0], _more(lag_ns, change))
                later.append(ways)
                ends.append(self._ways.later(nodes))
            yield self._latest([behind], lag_ns, later, ends)

    def _latest(
        self,
        behind_ns: Sequence[Int32 | Int64],
        lag_ns: Lags,
        later: Sequence[Later],
        ends: Sequence[Later],
    ) -> Int64:
        plan = self._graph.plan
        time = plan.heads(behind_ns, lag_ns, later, self._count)
        self._ways.follow(time, behind_ns, np.broadcast_to(0, self._node.size), ends)
        return np.asarray(np.maximum.reduceat(time[plan.count :], self._parts))

    def at(self, time_ns: Int64 | NodeTimes) -> Int64:
        """With the times of every node in a replay."""
        return np.asarray(np.maximum.reduceat(time_ns[self._node[:]], self._groups))


def _some_at_once(edits: Iterable[Change], count: int, edges: float) -> Iterator[list[Change]]:
    """So many of the edits at once, or fewer that change so many edges."""
    some, size = list[Change](), 0
    for change in edits:
        some.append(change)
        size += change[0].size
        if len(some) == count or size > edges:
            yield some
            some, size = [], 0
    if some:
        yield some


def _more(lag_ns: Lags, change: Change) -> Int64:
    """How much longer each edge of a change takes than with these lags."""
    edges, by = change
    return np.subtract(by, lag_ns[edges], dtype=np.int64)


def longest_path(graph: Graph, lag_ns: Lags, time_ns: Int64, node: int) -> Int64:
    """The edges of the longest path to a node, the last one first, of a graph replayed."""
    return np.asarray(graph.plan.longest_path(node, lag_ns, time_ns), dtype=np.int64)
