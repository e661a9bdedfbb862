"""The run as a graph: moments, and what each had to wait for.

``time[v]`` is the largest ``time[u] + lag`` over the edges u -> v. With the lags as they were
measured every moment is where the trace has it; an edit changes lags, and ``replay`` says
when everything would have been.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commtrace.arrays import Int64, ranges

__all__ = ["DROPPED", "Graph", "longest_way", "replay"]

DROPPED = -(2**50)
"""The lag of an edge that an edit takes away."""


@dataclass(frozen=True)
class Graph:
    """Nodes with the ``time_ns`` that was measured; edges by target, with kind and lag.

    ``source`` and ``target`` are nodes; of the edges to a node at least one binds:
    ``time_ns[source] + lag_ns`` is its time, and no other's is later. Nodes without edges to
    them stay where they were.
    """

    time_ns: Int64
    source: Int64
    target: Int64
    lag_ns: Int64
    kind: npt.NDArray[np.int8]

    @cached_property
    def plan(self) -> Plan:
        """How to replay it."""
        return Plan(self)

    def __getstate__(self) -> dict[str, object]:
        """Without the plan, which is made again faster than it is sent."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


class Plan:
    """The graph with its chains drawn together, in levels that depend on earlier ones only.

    A node that waits for one other only is that one and a lag. What is left to be found are
    the ``heads``: those that wait for nothing, first, and those that wait for several, by level.
    ``head`` is, for each node, which of them its chain begins with. ``edges`` lead to heads,
    by level; ``levels`` are slices of these, where each head's begin within, and slices of heads.
    """

    def __init__(self, graph: Graph) -> None:
        count = graph.time_ns.size
        into = np.bincount(graph.target, minlength=count)
        self.single = np.flatnonzero(into[graph.target] == 1)
        several = np.flatnonzero(into[graph.target] > 1)
        parent = np.arange(count)
        parent[graph.target[self.single]] = graph.source[self.single]
        self.hops = _hops(parent)
        roots = self.hops[-1] if self.hops else parent
        levels = list(_levels(graph, several, roots))
        self.free = np.flatnonzero(into == 0)
        self.heads = np.concatenate([self.free, *(nodes for _, _, nodes in levels)])
        at = np.zeros(count, dtype=np.int64)
        at[self.heads] = np.arange(self.heads.size)
        self.head = at[roots]
        self.edges = np.concatenate([several[:0], *(edges for edges, _, _ in levels)])
        self.levels: list[tuple[slice, Int64, slice]] = []
        edge, head = 0, self.free.size
        for edges, begins, nodes in levels:
            ends = edge + edges.size, head + nodes.size
            self.levels.append((slice(edge, ends[0]), begins, slice(head, ends[1])))
            edge, head = ends


def _hops(parent: Int64) -> list[Int64]:
    """The ancestors 1, 2, 4, … steps up, until none is left: the last are the roots."""
    hops = [parent]
    while (further := hops[-1][hops[-1]]).tolist() != hops[-1].tolist():
        hops.append(further)
    return hops


def _levels(graph: Graph, several: Int64, roots: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
    """Edges by level, where each node's begin, and the nodes."""
    if not several.size:
        return
    source, target = roots[graph.source[several]], graph.target[several]
    joint = np.zeros(graph.time_ns.size, dtype=np.bool_)
    joint[target] = True
    lacking = np.bincount(target[joint[source]], minlength=joint.size)
    by_source = np.argsort(source, kind="stable")
    first_out = np.searchsorted(source[by_source], np.arange(joint.size + 1))
    by_target = np.argsort(target, kind="stable")
    first_in = np.searchsorted(target[by_target], np.arange(joint.size + 1))
    front = np.flatnonzero(joint & (lacking == 0))
    while front.size:
        count = first_in[front + 1] - first_in[front]
        edges = several[by_target[ranges(first_in[front], count)]]
        yield edges, np.cumsum(count) - count, front
        out = ranges(first_out[front], first_out[front + 1] - first_out[front])
        reached = target[by_source[out]]
        np.subtract.at(lacking, reached, 1)
        front = np.unique(reached[lacking[reached] == 0])


def replay(graph: Graph, lags: Int64) -> Int64:
    """The time of every node with other lags: ``lags`` is edges × edits, the answer nodes × edits.

    Linear in nodes, edges and edits.
    """
    plan = graph.plan
    behind = np.zeros((graph.time_ns.size, lags.shape[1]), dtype=np.int64)
    behind[graph.target[plan.single]] = lags[plan.single]
    for parents in plan.hops[:-1]:
        behind += behind[parents]  # a root's own is 0
    source = graph.source[plan.edges]
    after, since = behind[source] + lags[plan.edges], plan.head[source]
    time = np.empty((plan.heads.size, lags.shape[1]), dtype=np.int64)
    time[: plan.free.size] = graph.time_ns[plan.free, None]
    for edges, begins, heads in plan.levels:
        np.maximum.reduceat(time[since[edges]] + after[edges], begins, axis=0, out=time[heads])
    at: Int64 = time[plan.head] + behind
    return at


def longest_way(graph: Graph, lag_ns: Int64, time_ns: Int64, node: int) -> Int64:
    """The edges of the longest way to a node, the last one first, of a graph replayed."""
    before = time_ns[graph.source]
    binding = np.flatnonzero(before + lag_ns == time_ns[graph.target])
    # Of several to one node the one from the latest moment, and of those the first.
    binding = binding[np.lexsort((-binding, before[binding], graph.target[binding]))]
    into = np.full(graph.time_ns.size, -1)
    into[graph.target[binding]] = binding
    edges, source = into.tolist(), graph.source.tolist()
    way: list[int] = []
    while (edge := edges[node]) >= 0:
        way.append(edge)
        node = source[edge]
    return np.asarray(way, dtype=np.int64)
