"""The run as a graph: moments, and what each had to wait for.

``time[v]`` is the largest ``time[u] + lag`` over the edges u -> v. With the lags as they were
measured every moment is where the trace has it; an edit changes lags, and ``replay`` says
when everything would have been.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt

from commtrace.arrays import Int32, Int64, sorted_by
from commtrace.causal.plan import Plan

__all__ = ["DROPPED", "Graph", "Latest", "longest_way", "replay", "replayed"]

DROPPED = -(2**50)
"""The lag of an edge that an edit takes away."""
_AT_ONCE = 16  # edits
_MOST_BYTES = 1 << 26  # of what is known of heads, and between them, with these


@dataclass(frozen=True)
class Graph:
    """Nodes with the ``time_ns`` that was measured; edges by target, with kind and lag.

    ``source`` and ``target`` are nodes; of the edges to a node at least one binds:
    ``time_ns[source] + lag_ns`` is its time, and no other's is later. Nodes without edges to
    them stay where they were.
    """

    time_ns: Int64
    source: Int32
    target: Int32
    lag_ns: Int64
    kind: npt.NDArray[np.int8]

    @cached_property
    def plan(self) -> Plan:
        """How to replay it."""
        return Plan(self)

    def __getstate__(self) -> dict[str, object]:
        """Without the plan, which is made again faster than it is sent."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def replay(graph: Graph, lags: Int64) -> Int64:
    """The time of every node with other lags: ``lags`` is edges × edits, the answer nodes × edits.

    Linear in nodes, edges and edits.
    """
    plan = graph.plan
    found = np.empty((graph.time_ns.size, lags.shape[1]), dtype=np.int64)
    for edit, lag in enumerate(lags.T):
        behind = plan.behind(lag)
        time = plan.heads(plan.after(lag, behind)[None])[0]
        behind += time[plan.head]
        found[:, edit] = behind
    return found


def replayed(graph: Graph, lag_ns: Int64) -> Int64:
    """The time of every node with the lags of one edit; as measured with those of the graph."""
    return graph.time_ns if lag_ns is graph.lag_ns else replay(graph, lag_ns[:, None])[:, 0]


class Latest:
    """When the last of some nodes of each group happens; groups are numbered from 0."""

    def __init__(self, graph: Graph, node: Int64, group: Int64) -> None:
        self._graph = graph
        order = sorted_by(graph.plan.head[node])
        order = order[sorted_by(group[order])]
        self._node, head, group = node[order], graph.plan.head[node[order]], group[order]
        new = np.diff(group, prepend=-1) != 0
        self._parts = np.flatnonzero(new | (np.diff(head, prepend=-1) != 0))
        self._heads = head[self._parts]
        self._groups = np.flatnonzero(new[self._parts])

    def replayed(self, lags: Iterable[Int64]) -> Int64:
        """With the lags of each edit: groups × edits."""
        plan, parts, edits = self._graph.plan, self._parts.size, iter(lags)
        each = 8 * (plan.size + plan.count + 2 * parts)
        count = at_once = min(max(_MOST_BYTES // max(each, 1), 1), _AT_ONCE)
        after = np.empty((at_once, plan.size), dtype=np.int64)
        last = np.empty((at_once, parts), dtype=np.int64)
        found = []
        while count == at_once:
            count = 0
            for lag in islice(edits, at_once):
                behind = plan.behind(lag)
                after[count] = plan.after(lag, behind)
                last[count] = np.maximum.reduceat(behind[self._node], self._parts)
                count += 1
            time = last[:count] + plan.heads(after[:count])[:, self._heads]
            found.append(np.maximum.reduceat(time, self._groups, axis=1).T)
        return np.concatenate(found, axis=1)

    def at(self, time_ns: Int64) -> Int64:
        """With the times of every node in a replay."""
        last = np.maximum.reduceat(time_ns[self._node], self._parts)
        return np.asarray(np.maximum.reduceat(last, self._groups))


def longest_way(graph: Graph, lag_ns: Int64, time_ns: Int64, node: int) -> Int64:
    """The edges of the longest way to a node, the last one first, of a graph replayed."""
    before = time_ns[graph.source]
    binding = np.flatnonzero(before + lag_ns == time_ns[graph.target])
    # Of several to one node the one from the latest moment, and of those the first.
    before, target = before[binding], graph.target[binding]
    latest = np.full(graph.time_ns.size, np.iinfo(np.int64).min)
    np.maximum.at(latest, target, before)
    last = before == latest[target]
    into = np.full(graph.time_ns.size, graph.source.size)
    np.minimum.at(into, target[last], binding[last])
    way: list[int] = []
    while (edge := int(into[node])) < graph.source.size:
        way.append(edge)
        node = int(graph.source[edge])
    return np.asarray(way, dtype=np.int64)
