"""How a graph is replayed: with its chains drawn together, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int32, Int64, ranges, sorted_by
from commtrace.causal.ways import Later, Levels, Ways

if TYPE_CHECKING:
    from commtrace.causal.graph import Graph

__all__ = ["Plan"]

_AT_ONCE = 1 << 20  # nodes


class Plan:
    """The graph with its chains drawn together, in levels that depend on earlier ones only.

    A node that waits for one other only is that one and a lag. What is left to be found are
    the heads of chains: those that wait for nothing, first, and those that wait for several, by
    level. ``head`` is, for each node, which of the ``count`` its chain begins with; ``place`` is
    where it is if each is followed by all that hang on it; ``ways`` lead to heads. Where it is
    ``circular``, nodes wait for themselves, and nothing can be replayed.
    """

    def __init__(self, graph: Graph) -> None:
        count = graph.time_ns.size
        into = np.bincount(graph.target, minlength=count).astype(np.int32)
        edges = into[graph.target]
        single, several = _where(edges == 1), _where(edges > 1)
        several = several[sorted_by(graph.target[several])]
        parent = np.arange(count, dtype=np.int32)
        parent[graph.target[single]] = graph.source[single]
        roots, place, size = _trees(parent)
        self.circular = bool((into[roots] == 1).any())
        level = _levels(roots[graph.source[several]], graph.target[several], into, graph.time_ns)
        self.circular |= bool((level < 0).any())
        if self.circular:
            return
        free, joint = _where(into == 0), _where(into > 1)
        joint = joint[sorted_by(into[joint])]
        joint = joint[sorted_by(level[joint])]
        self._free_ns, self.count = graph.time_ns[free], free.size + joint.size
        at = np.zeros(count, dtype=np.int32)
        at[np.append(free, joint)] = np.arange(self.count)
        self.head = at[roots]
        sizes = np.bincount(self.head)
        place += (np.cumsum(sizes) - sizes).astype(np.int32)[self.head]
        self.place = place
        self._end = np.empty(count, dtype=np.int32)
        self._end[place] = place + size
        self._links = np.full(count, -1, dtype=np.int32)
        self._links[place[graph.target[single]]] = single
        places, levels = _batches(joint, level, into, free.size)
        self._edges = several[places]
        begins = graph.source[self._edges]
        self.ways = Ways(self.place[begins], self.head[begins], levels, count)
        self._source, self._target = graph.source, graph.target

    @cached_property
    def _way(self) -> Int32:
        """The way that each edge is; -1 for those of chains."""
        way = np.full(self._target.size, -1, dtype=np.int32)
        way[self._edges] = np.arange(self._edges.size)
        return way

    def behind(self, lag_ns: Int64) -> Int64:
        """How long after the head of its chain the node in each place is, with these lags."""
        own = lag_ns[self._links]
        own[self._links < 0] = 0
        behind = np.append(own, 0)
        np.subtract.at(behind, self._end, own)
        del own
        return np.cumsum(behind, out=behind)[:-1]

    def after(self, lag_ns: Int64, behind_ns: Int64) -> Int64:
        """How long after the head that it begins with each way ends."""
        after: Int64 = behind_ns[self.ways.place]
        after += lag_ns[self._edges]
        return after

    def later(self, edges: Int32 | Int64, by_ns: Int64) -> tuple[Later, Later]:
        """The places, and the ways, that are later behind their heads if edges take longer."""
        way = self._way[edges]
        places = self._places(edges[way < 0], by_ns[way < 0])
        ways, by = self.ways.later(places)
        its = way >= 0
        later: Int64 = np.append(ways, way[its])
        return places, (later, np.append(by, by_ns[its]).astype(np.int64))

    def _places(self, edges: Int32 | Int64, by_ns: Int64) -> Later:
        """The places that are later if edges of chains take longer."""
        place = self.place[self._target[edges]].astype(np.int64)
        order = np.argsort(place)
        place, by_ns = place[order], by_ns[order]
        end = self._end[place].astype(np.int64)
        # What hangs on a node that is later is within its stretch already.
        outer = place >= np.append(0, np.maximum.accumulate(end)[:-1])
        first, last = place[outer], end[outer]
        sizes = last - first
        in_row = (np.cumsum(sizes) - last)[np.cumsum(outer) - 1]
        by = np.zeros(int(sizes.sum()) + 1, dtype=np.int64)
        by[place + in_row] = by_ns
        np.subtract.at(by, end + in_row, by_ns)
        return ranges(first, sizes), np.cumsum(by[:-1])

    def waited(self, lag_ns: Int64, time_ns: Int64) -> Int32:
        """The edge that each node waited for, -1 if for none, with these lags and times.

        Of several the one from the latest moment, and of those the first.
        """
        found = self._links[self.place]
        before, target = time_ns[self._source[self._edges]], self._target[self._edges]
        binds = before + lag_ns[self._edges] == time_ns[target]
        edges, before, target = self._edges[binds], before[binds], target[binds]
        latest = np.full(self.count, np.iinfo(np.int64).min)
        np.maximum.at(latest, self.head[target], before)
        last = np.flatnonzero(before == latest[self.head[target]])[::-1]
        found[target[last]] = edges[last]
        return found

    def heads(self, after_ns: Int64, later: Sequence[Later], more: int = 0) -> Int64:
        """The time of each head, with what each edit makes later: heads × edits.

        With room for so many more behind them.
        """
        time = np.empty((self.count + more, len(later)), dtype=np.int64)
        time[: self._free_ns.size] = self._free_ns[:, None]
        self.ways.follow(time, after_ns, later)
        return time

    def times(self, lag_ns: Int64) -> Int64:
        """The time of each node, with these lags."""
        behind = self.behind(lag_ns)
        nothing = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        time = self.heads(self.after(lag_ns, behind), [nothing])[:, 0]
        found: Int64 = behind[self.place]
        for at in range(0, found.size, _AT_ONCE):
            found[at : at + _AT_ONCE] += time[self.head[at : at + _AT_ONCE]]
        return found


def _where(those: Bool) -> Int32:
    return np.flatnonzero(those).astype(np.int32)


def _trees(parent: Int32) -> tuple[Int32, Int32, Int32]:
    """Of each node its root, its place behind it, and how many hang on it, itself included."""
    roots, hops = _hops(parent)
    size = np.ones(parent.size, dtype=np.int32)
    for nodes, before in reversed(hops):
        np.add.at(size, before, size[nodes])
    inner = _where(parent != np.arange(parent.size, dtype=np.int32))
    siblings = inner[np.bincount(parent[inner], minlength=parent.size)[parent[inner]] > 1]
    siblings = siblings[sorted_by(parent[siblings])]
    before = np.cumsum(size[siblings], dtype=np.int32) - size[siblings]
    first = np.flatnonzero(np.diff(parent[siblings], prepend=-1))
    counts = np.diff(np.append(first, siblings.size))
    place = np.zeros(parent.size, dtype=np.int32)
    place[inner] = 1
    place[siblings] += before - np.repeat(before[first], counts)
    for nodes, before in hops:
        place[nodes] += place[before]
    outer = _where(parent == np.arange(parent.size, dtype=np.int32))
    size[outer] = np.bincount(roots, minlength=parent.size)[outer]
    return roots, place, size


def _hops(parent: Int32) -> tuple[Int32, list[tuple[Int32, Int32]]]:
    """The roots; and nodes 1, 2, 4, … steps from one, or more, with what is so far before them."""
    up, hops = parent.copy(), []
    nodes = _where(up[up] != up)
    for _ in range(parent.size.bit_length()):  # nodes in a circle are left then
        if not nodes.size:
            break
        before = up[nodes]
        hops.append((nodes, before))
        up[nodes] = up[before]
        nodes = nodes[up[up[nodes]] != up[nodes]]
    return up, hops


def _levels(source: Int32, target: Int32, into: Int32, time_ns: Int64) -> Int32:
    """The level of each node with several edges, which lead to it from sources of lower levels.

    Targets are in their order. Negative where a node depends on itself. Each node goes by the
    source that it takes for the highest, at first the latest; with the levels that this gives,
    those who were wrong choose again: a few rounds, however many levels there are.
    """
    joint, inner = _where(into > 1), into[source] > 1
    number = np.cumsum(into > 1, dtype=np.int32) - 1
    source, target = number[source[inner]], number[target[inner]]
    begins = np.flatnonzero(np.diff(target, prepend=-1))
    heads, sizes = target[begins], np.diff(np.append(begins, target.size))
    above, roots = np.arange(joint.size, dtype=np.int32), np.arange(joint.size, dtype=np.int32)
    level: Int32 | Int64 = time_ns[joint]
    if (source == target).any():
        return np.full(into.size, -1, dtype=np.int32)
    wrong = np.ones(heads.size, dtype=np.bool_)
    while wrong.any():
        before = level[source]
        highest = np.where(wrong, np.maximum.reduceat(before, begins), -1)
        chosen = before == np.repeat(highest, sizes)
        above[target[chosen]] = source[chosen]
        up, level = above, (above != roots).astype(np.int32)
        for _ in range(joint.size.bit_length()):
            if not (more := level[up]).any():
                break
            level += more
            up = up[up]
        if (above[up] != up).any():
            return np.full(into.size, -1, dtype=np.int32)
        wrong = np.maximum.reduceat(level[source], begins) >= level[heads]
    levels = np.zeros(into.size, dtype=np.int32)
    levels[joint] = level if heads.size else 0
    return levels


def _batches(joint: Int32, level: Int32, into: Int32, free: int) -> tuple[Int64, Levels]:
    """Edges to nodes of one level and as many edges: of each the first, of each the second, ….

    As places among all edges to joint nodes, by node. Heads behind ``free`` others are led to.
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
    return places, Levels(start, begin + free, nodes, size[begin].astype(np.int64))
