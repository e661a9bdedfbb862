"""Where the edges of a graph lead that is in the order in which it is replayed."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Int32, Int64
from commtrace.causal.ways import Levels

__all__ = ["Targets"]


class Targets:
    """The node that each edge leads to: it follows from the order, and takes little memory.

    Edges to nodes that wait for several come first, as ``levels`` have them; then one to each other
    node that waits. ``first`` is where the chain of each head is, and where the last one ends.
    """

    def __init__(self, first: Int32, levels: Levels) -> None:
        self._first, self._levels = first[:-1], levels
        self._ways = int((levels.heads * levels.size).sum())
        # Of each head how many nodes before it are none.
        self._links = self._first - np.arange(self._first.size, dtype=np.int32)
        self._edges = self._ways + int(first[-1]) - self._first.size

    def __getitem__(self, edges: Int32 | Int64 | slice) -> Int32:
        """Of some edges, by their numbers."""
        if isinstance(edges, slice):
            edges = np.arange(self._edges, dtype=np.int32)[edges]
        target = np.asarray(edges - self._ways, dtype=np.int32)
        is_way = target < 0
        target[is_way] = self._first[self._levels.led_to(edges[is_way])]
        link = target[~is_way]
        target[~is_way] += np.searchsorted(self._links, link, side="right").astype(np.int32)
        return target
