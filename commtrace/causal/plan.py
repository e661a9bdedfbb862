"""How a graph is replayed: with its chains drawn together, level by level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int32, Int64, ranges
from commtrace.causal.edge_ends import Sources, Targets
from commtrace.causal.ways import NOTHING, Later, Ways

if TYPE_CHECKING:
    from commtrace.causal.arrange import Order
    from commtrace.causal.graph import Graph, Lags

__all__ = ["Plan"]

_AT_ONCE = 1 << 18  # nodes, or heads


class Plan:
    """The graph with its chains drawn together, in levels that depend on earlier ones only.

    A node that waits for one other only is that one and a lag. What is left to be found are
    the ``count`` heads of chains: those that wait for nothing, first, and those that wait for
    several, by level. ``ways`` lead to heads: the first edges of the graph.
    """

    def __init__(self, graph: Graph, order: Order) -> None:
        self.first, self._hung = order.first, order.hung
        self.count = order.first.size - 1
        self._free_ns = graph.time_ns[order.first[: order.free]]
        self._target = graph.target
        self._source = (
            graph.source
            if isinstance(graph.source, Sources)
            else Sources(graph.source, order.first, Targets(order.first, order.levels))
        )
        self.ways = Ways(self._source.ways, order.levels, graph.time_ns.size)

    def _links(self) -> Iterator[tuple[Int64, slice]]:
        """The nodes that wait for one other only, and the edges to them, some at a time."""
        nodes, ways = self._hung.size, self.ways.place.size
        for begin in range(0, nodes, _AT_ONCE):
            end = min(begin + _AT_ONCE, nodes)
            low, high = np.searchsorted(self.first, np.asarray((begin, end), np.int32)).tolist()
            is_link = np.ones(end - begin, dtype=np.bool_)
            is_link[self.first[low:high] - begin] = False
            yield begin + np.flatnonzero(is_link), slice(ways + begin - low, ways + end - high)

    def behind(self, lag_ns: Lags, more: Later = NOTHING) -> tuple[Int64, Later]:
        """How long after the head of its chain each node is with these lags.

        And with so much ``more`` on some edges, each there once; of these the ways are left.
        """
        behind = np.zeros(self._hung.size + 1, dtype=np.int64)
        for link, waited in self._links():
            took_ns = lag_ns[waited].astype(np.int64)
            behind[link] += took_ns
            np.subtract.at(behind, self._end(link), took_ns)
        edges, by_ns = more
        is_way = edges < self.ways.place.size
        node, by = self._target[edges[~is_way]], by_ns[~is_way]
        behind[node] += by
        np.subtract.at(behind, self._end(node), by)
        return np.cumsum(behind, out=behind)[:-1], (edges[is_way], by_ns[is_way])

    def _end(self, node: Int32 | Int64) -> Int64:
        """Where what hangs on each of some nodes ends."""
        end: Int64 = np.add(node, self._hung[node], dtype=np.int64)
        return end

    def later(self, edges: Int32 | Int64, by_ns: Int64) -> tuple[Later, Later]:
        """The nodes, and the ways, that are later behind their heads if edges take longer."""
        way = edges < self.ways.place.size
        nodes = self._nodes(edges[~way], by_ns[~way])
        ways, by = self.ways.later(nodes)
        later: Int64 = np.append(ways, edges[way]).astype(np.int64)
        return nodes, (later, np.append(by, by_ns[way]).astype(np.int64))

    def _nodes(self, edges: Int32 | Int64, by_ns: Int64) -> Later:
        """The nodes that are later if edges of chains take longer."""
        node = self._target[edges]
        order = np.argsort(node)
        node, by_ns = node[order], by_ns[order]
        end = self._end(node)
        # What hangs on a node that is later is within its stretch already.
        outer = node >= np.append(0, np.maximum.accumulate(end)[:-1])
        first, last = node[outer], end[outer]
        sizes = (last - first).astype(np.int64)
        in_row = (np.cumsum(sizes) - last)[np.cumsum(outer) - 1]
        by = np.zeros(int(sizes.sum()) + 1, dtype=np.int64)
        by[node + in_row] = by_ns
        np.subtract.at(by, end + in_row, by_ns)
        return ranges(first, sizes), np.cumsum(by[:-1])

    def longest_way(self, node: int, lag_ns: Lags, time_ns: Int64) -> list[int]:
        """The edges of the longest way to a node, the last one first, with these lags and times."""
        # A number of another type would make numpy convert all of them.
        head = int(self.first.searchsorted(np.int32(node), side="right")) - 1
        found = list[int]()
        while True:
            first, ways = int(self.first[head]), self.ways.place.size
            while node != first:
                link = node - head - 1
                found.append(ways + link)
                node = self._source.linked(link, node)
            way = self._waited(head, lag_ns, time_ns)
            if way < 0:
                return found
            found.append(way)
            node, head = int(self.ways.place[way]), int(self.ways.place.since[way])

    def _waited(self, head: int, lag_ns: Lags, time_ns: Int64) -> int:
        """The way that a head waited for, -1 if for none.

        Of several the one from the latest moment, and of those the first.
        """
        if head < self._free_ns.size:
            return -1
        ways = self.ways.to(head)
        before = time_ns[self.ways.place[ways]]
        binds = before + lag_ns[ways] == time_ns[self.first[head]]
        latest = int(np.where(binds, before, NULL).argmax())
        return int(ways.start + latest * ways.step) if binds[latest] else -1

    def heads(self, behind_ns: Int64, lag_ns: Lags, later: Sequence[Later], more: int = 0) -> Int64:
        """The time of each head, with what each edit makes later: heads × edits.

        With room for so many more behind them.
        """
        time = np.empty((self.count + more, len(later)), dtype=np.int64)
        time[: self._free_ns.size] = self._free_ns[:, None]
        self.ways.follow(time, behind_ns, lag_ns, later)
        return time

    def times(self, lag_ns: Lags) -> Int64:
        """The time of each node, with these lags."""
        times, nothing = self.behind(lag_ns)
        time = self.heads(times, lag_ns, [nothing])[:, 0]
        for at in range(0, self.count, _AT_ONCE):
            first = self.first[at : at + _AT_ONCE + 1]
            times[first[0] : first[-1]] += np.repeat(time[at : at + _AT_ONCE], np.diff(first))
        return times
