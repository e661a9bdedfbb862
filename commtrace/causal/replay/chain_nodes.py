"""Nodes of a graph that is in the order in which it is replayed, in few bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from commtrace.arrays import Int32, fewest

__all__ = ["ChainNodes"]


class ChainNodes:
    """Nodes, each by the head ``since`` which its chain begins, and how far it is behind that.

    ``first`` is where the chain of each head is, and where the last one ends.
    """

    def __init__(self, first: Int32, node: Int32) -> None:
        head = np.repeat(np.arange(first.size - 1, dtype=np.int32), np.diff(first))
        self.since: Int32 = head[node]
        self.size = node.size
        self._first = first
        self._behind = fewest(node - first[self.since])

    def __getitem__(self, which: Any) -> Any:
        """Some of them, by their numbers, or one."""
        return self._first[self.since[which]] + self._behind[which]
