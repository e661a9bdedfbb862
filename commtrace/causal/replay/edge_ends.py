"""Where the edges of a graph come from and lead to that is in the order in which it is replayed.

Of these edges those to nodes that wait for several come first: the ways. They are as ``levels``
have them. Then comes one link to each other node that waits. ``first`` is where the chain of each
head is, and where the last one ends.
"""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Int32, Int64, fewest
from commtrace.causal.replay.chain_nodes import ChainNodes
from commtrace.causal.replay.ways import Levels

__all__ = ["Sources", "Targets"]

_BITS = 6  # of heads that are looked through for one
_MANY = 1 / 8  # of the links: so many are faster looked up
_AT_ONCE = 1 << 18  # nodes


class Targets:
    """The node that each edge leads to: it follows from the order, and takes little memory."""

    def __init__(self, first: Int32, levels: Levels) -> None:
        self._first, self._levels = first, levels
        self._heads = first.size - 1
        self.ways = int((levels.heads * levels.size).sum())
        self.edges = self.ways + int(first[-1]) - self._heads
        some = np.arange(0, self._heads, 1 << _BITS, dtype=np.int32)
        self._links = first[some] - some  # that come before some heads

    def __getitem__(self, edges: Int32 | Int64 | slice) -> Int32:
        """Of some edges, by their numbers."""
        if isinstance(edges, slice):
            edges = np.arange(self.edges, dtype=np.int32)[edges]
        target = np.asarray(edges - self.ways, dtype=np.int32)
        is_way = target < 0
        target[is_way] = self._first[self._levels.led_to(edges[is_way])]
        target[~is_way] += self._heads_before(target[~is_way])
        return target

    def _heads_before(self, link: Int32) -> Int32:
        """How many heads come before the nodes that some links lead to."""
        if link.size > _MANY * (self.edges - self.ways):
            heads = np.arange(1, self._heads + 1, dtype=np.int32)
            return np.repeat(heads, np.diff(self._first) - 1)[link]
        head = np.searchsorted(self._links, link, side="right").astype(np.int32)
        head -= 1
        head <<= _BITS
        for bit in reversed(range(_BITS)):
            ahead = np.minimum(head + np.int32(1 << bit), np.int32(self._heads))
            np.copyto(head, ahead, where=self._first[ahead] - ahead <= link)
        head += 1
        return head


class Sources:
    """The node that each edge comes from: of links so far ``before`` the one that they lead to."""

    def __init__(self, source: Int32, first: Int32, targets: Targets) -> None:
        self.ways, self._targets = ChainNodes(first, source[: targets.ways]), targets
        is_linked = np.ones(int(first[-1]), dtype=np.bool_)
        is_linked[first[:-1]] = False
        each, links = [np.empty(0, np.int8)], source[targets.ways :]
        for begin in range(0, is_linked.size, _AT_ONCE):
            nodes = begin + np.flatnonzero(is_linked[begin : begin + _AT_ONCE])
            its, links = links[: nodes.size], links[nodes.size :]
            each.append(fewest(nodes - its))
        self.before = np.concatenate(each)

    def __getitem__(self, edges: Int32 | Int64 | slice) -> Int32:
        """Of some edges, by their numbers."""
        if isinstance(edges, slice):
            edges = np.arange(self._targets.edges, dtype=np.int32)[edges]
        is_way = edges < self.ways.size
        source = np.empty(edges.size, dtype=np.int32)
        source[is_way] = self.ways[edges[is_way]]
        links = edges[~is_way]
        source[~is_way] = self._targets[links] - self.before[links - self.ways.size]
        return source
