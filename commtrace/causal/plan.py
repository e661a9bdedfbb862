"""How a graph is replayed: with its chains drawn together, level by level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int32, Int64, sorted_by

if TYPE_CHECKING:
    from commtrace.causal.graph import Graph

__all__ = ["Plan"]

_Level = tuple[slice, int, slice]
_FEW = 8  # edges of a level, all edits together


class Plan:
    """The graph with its chains drawn together, in levels that depend on earlier ones only.

    A node that waits for one other only is that one and a lag. What is left to be found are
    the heads of chains: those that wait for nothing, first, and those that wait for several, by
    level. ``head`` is, for each node, which of the ``count`` its chain begins with; ``size`` edges
    lead to heads. Where it is ``circular``, nodes wait for themselves, and nothing can be replayed.
    """

    def __init__(self, graph: Graph) -> None:
        count = graph.time_ns.size
        into = np.bincount(graph.target, minlength=count)
        single = np.flatnonzero(into[graph.target] == 1)
        parent = np.arange(count)
        parent[graph.target[single]] = graph.source[single]
        self._links = np.zeros(count, dtype=np.int32)
        self._links[graph.target[single]] = single
        self._roots = np.flatnonzero(into != 1).astype(np.int32)
        roots, self._hops = _hops(parent)
        self.circular = bool((into[roots] == 1).any())  # no chain begins so
        several = np.flatnonzero(into[graph.target] > 1)
        several = several[sorted_by(graph.target[several])]
        level = _levels(roots[graph.source[several]], graph.target[several], into)
        self.circular |= bool((level < 0).any())
        level = np.maximum(level, 0)
        free, joint = np.flatnonzero(into == 0), np.flatnonzero(into > 1)
        joint = joint[sorted_by(into[joint])]
        joint = joint[sorted_by(level[joint])]
        at = np.zeros(count, dtype=np.int64)
        at[np.append(free, joint)] = np.arange(free.size + joint.size)
        self.head = at[roots].astype(np.int32)
        self._free_ns, self.count = graph.time_ns[free], free.size + joint.size
        places, self._levels = _batches(joint, level, into, free.size)
        self._edges = several[places].astype(np.int32)
        self.size = self._edges.size
        self._sources = graph.source[self._edges]
        self._since = self.head[self._sources]

    def behind(self, lag_ns: Int64) -> Int64:
        """How long after the head of its chain each node is, with these lags."""
        behind: Int64 = lag_ns[self._links] if lag_ns.size else np.zeros(self._links.size, np.int64)
        behind[self._roots] = 0
        for nodes, before in self._hops:
            behind[nodes] += behind[before]
        return behind

    def after(self, lag_ns: Int64, behind_ns: Int64) -> Int64:
        """How long after the head that it leads from each edge to a head ends."""
        after: Int64 = behind_ns[self._sources]
        after += lag_ns[self._edges]
        return after

    def heads(self, after_ns: Int64) -> Int64:
        """The time of each head, with what ``after`` says of each edit: edits × heads."""
        edits = after_ns.shape[0]
        time = np.empty((edits, self.count), dtype=np.int64)
        time[:, : self._free_ns.size] = self._free_ns
        if edits * self.size < _FEW * len(self._levels):
            for row, after in zip(time, after_ns, strict=True):
                self._one_by_one(row, after)
            return time
        for edges, size, heads in self._levels:
            come = time.take(self._since[edges], axis=1)
            come += after_ns[:, edges]
            come.reshape(edits, size, -1).max(axis=1, out=time[:, heads])
        return time

    def _one_by_one(self, time_ns: Int64, after_ns: Int64) -> None:
        """The same for one edit, without numpy, which takes long over each of many levels."""
        time, after, since = time_ns.tolist(), after_ns.tolist(), self._since.tolist()
        for edges, _, heads in self._levels:
            nodes = heads.stop - heads.start
            for node in range(nodes):
                its = range(edges.start + node, edges.stop, nodes)
                time[heads.start + node] = max([time[since[edge]] + after[edge] for edge in its])
        time_ns[:] = time


def _hops(parent: Int64) -> tuple[Int64, list[tuple[Int32, Int32]]]:
    """The roots; and nodes 1, 2, 4, … steps from one, or more, with what is so far before them."""
    up, hops = parent.copy(), list[tuple[Int32, Int32]]()
    nodes = np.flatnonzero(up[up] != up)
    for _ in range(parent.size.bit_length()):  # nodes in a circle are left then
        if not nodes.size:
            break
        before = up[nodes]
        hops.append((nodes.astype(np.int32), before.astype(np.int32)))
        up[nodes] = up[before]
        nodes = nodes[up[up[nodes]] != up[nodes]]
    return up, hops


def _levels(source: Int64, target: Int32, into: Int64) -> Int64:
    """The level of each node with several edges, which lead to it from sources of lower levels.

    Negative where it depends on itself.
    """
    inner = into[source] > 1
    source, target = source[inner], target[inner]
    lacking, out = (np.bincount(ends, minlength=into.size) for ends in (target, source))
    reaches, first = target[sorted_by(source)], np.cumsum(out) - out
    level = np.where(into > 1, -1, 0)
    front, number = np.flatnonzero((into > 1) & (lacking == 0)).tolist(), 0
    # A graph has few nodes a level: numpy would take longer over each than one by one.
    arrays = (level, lacking, reaches, first, first + out)
    at, left, to, begin, end = (its.data for its in arrays)
    while front:
        following = []
        for node in front:
            at[node] = number
            for reached in to[begin[node] : end[node]]:
                left[reached] -= 1
                if not left[reached]:
                    following.append(reached)
        front, number = following, number + 1
    return level


def _batches(joint: Int64, level: Int64, into: Int64, free: int) -> tuple[Int64, list[_Level]]:
    """Edges to nodes of one level and as many edges: of each the first, of each the second, ….

    As places among all edges to joint nodes, by node. Then slices of these, the number of edges
    that each node has, and slices of heads.
    """
    sizes = np.where(into > 1, into, 0)
    first = (np.cumsum(sizes) - sizes)[joint]
    size, level = into[joint], level[joint]
    begin = np.flatnonzero((np.diff(size, prepend=0) != 0) | (np.diff(level, prepend=0) != 0))
    nodes = np.diff(np.append(begin, joint.size))
    edges = nodes * size[begin]
    start = np.cumsum(edges) - edges
    place = np.arange(edges.sum()) - np.repeat(start, edges)
    which, node = np.divmod(place, np.repeat(nodes, edges))
    places = first[np.repeat(begin, edges) + node] + which
    columns = (its.tolist() for its in (start, edges, size[begin], begin + free, nodes))
    each = zip(*columns, strict=True)
    return places, [(slice(a, a + n), size, slice(h, h + m)) for a, n, size, h, m in each]
