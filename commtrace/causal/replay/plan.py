"""How a graph is replayed: with its chains drawn together, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import Int32, Int64, distinct, narrow, ranges
from commtrace.causal.replay.edge_ends import Sources, Targets
from commtrace.causal.replay.ways import NOTHING, Later, Ways

if TYPE_CHECKING:
    from commtrace.causal.replay.arrange import Order
    from commtrace.causal.replay.graph import Graph, Lags

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

    @cached_property
    def _parts(self) -> list[tuple[int, int]]:
        """The chains some nodes at a time: from which head to which."""
        begins = np.arange(0, self._hung.size, _AT_ONCE, dtype=np.int32)
        heads = distinct(np.append(np.searchsorted(self.first, begins), self.count))
        return list(pairwise(heads.tolist()))

    def behind(
        self,
        lag_ns: Lags,
        more: Later = NOTHING,
        dtype: type[np.int32 | np.int64] = np.int32,
    ) -> tuple[Int32 | Int64, Later]:
        """How long after the head of its chain each node is with these lags.

        And with so much ``more`` on some edges, each there once; of these the ways are left.
        In 64 bits where 32 do not hold it.
        """
        edges, by_ns = more
        ways = self.ways.place.size
        is_way = edges < ways
        links, by = edges[~is_way] - ways, by_ns[~is_way]
        order = np.argsort(links, kind="stable")
        links, by = links[order], by[order]
        behind: Any = np.empty(self._hung.size, dtype=dtype)
        for low, high in self._parts:
            begin, end = self.first[[low, high]].tolist()
            took_ns = lag_ns[ways + begin - low : ways + end - high].astype(np.int64)
            mine = slice(*np.searchsorted(links, (begin - low, end - high)).tolist())
            took_ns[links[mine] - (begin - low)] += by[mine]
            is_link = np.ones(end - begin, dtype=np.bool_)
            is_link[self.first[low:high] - begin] = False
            node = np.flatnonzero(is_link)
            after = np.zeros(end - begin + 1, dtype=np.int64)
            after[node] = took_ns
            np.subtract.at(after, node + self._hung[begin:end][node], took_ns)
            part = narrow(np.cumsum(after, out=after)[:-1])
            if part.itemsize > behind.itemsize:
                behind = behind.astype(np.int64)
            behind[begin:end] = part
        return behind, (edges[is_way], by_ns[is_way])

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

    def longest_path(self, node: int, lag_ns: Lags, time_ns: Int64) -> list[int]:
        """The edges of the longest path to a node, the last first, with these lags and times."""
        # A number of another type would make numpy convert all of them.
        head = int(self.first.searchsorted(np.int32(node), side="right")) - 1
        found, ways = list[int](), self.ways.place.size
        places = self.ways.place[:]
        begin_ns = time_ns[places]
        end_ns = begin_ns + lag_ns[:ways]
        # Views whose items are Python's own numbers are faster to look at one by one.
        firsts, place = self.first.data, places.data
        since, before = self.ways.place.since.data, self._source.before.data
        while True:
            first = firsts[head]
            while node != first:
                link = node - head - 1
                found.append(ways + link)
                node -= before[link]
            way = self._waited(head, begin_ns, end_ns, time_ns[first])
            if way < 0:
                return found
            found.append(way)
            node, head = place[way], since[way]

    def _waited(self, head: int, begin_ns: Int64, end_ns: Int64, time_ns: np.int64) -> int:
        """The way that a head waited for until then, by when ways begin and end; -1 if for none.

        Of several the one from the latest moment, and of those the first.
        """
        if head < self._free_ns.size:
            return -1
        ways = self.ways.to(head)
        (binds,) = (end_ns[ways] == time_ns).nonzero()
        if not binds.size:
            return -1
        latest = binds[begin_ns[ways][binds].argmax()] if binds.size > 1 else binds[0]
        return ways.start + int(latest) * ways.step  # type: ignore[no-any-return]

    def heads(
        self,
        behind_ns: Sequence[Int32 | Int64],
        lag_ns: Lags,
        later: Sequence[Later],
        more: int = 0,
    ) -> Int64:
        """The time of each head, with what each edit makes later: heads × edits.

        Where nodes are ``behind`` them, in each edit or in all; with room for so many more times.
        """
        time = np.empty((self.count + more, len(later)), dtype=np.int64)
        time[: self._free_ns.size] = self._free_ns[:, None]
        self.ways.follow(time, behind_ns, lag_ns, later)
        return time

    def times(self, lag_ns: Lags) -> Int64:
        """The time of each node, with these lags."""
        behind, nothing = self.behind(lag_ns, dtype=np.int64)
        time = self.heads([behind], lag_ns, [nothing])[:, 0]
        times: Int64 = behind.astype(np.int64, copy=False)
        for at in range(0, self.count, _AT_ONCE):
            first = self.first[at : at + _AT_ONCE + 1]
            times[first[0] : first[-1]] += np.repeat(time[at : at + _AT_ONCE], np.diff(first))
        return times
