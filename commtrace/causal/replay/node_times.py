"""When the nodes of a graph happened, in as few bytes as that needs."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Int32, Int64

__all__ = ["NodeTimes"]

_BITS = 10  # of nodes with one base: they are near one another in time, as in the order
_MOST = 1 << 32


class NodeTimes:
    """Times in ns, unpacked when they are asked for: above that of the earliest near it."""

    def __init__(self, time_ns: Int64) -> None:
        self.size = time_ns.size
        firsts = np.arange(0, self.size, 1 << _BITS)
        self._base = np.minimum.reduceat(time_ns, firsts) if self.size else time_ns
        above = time_ns - self._of_each(self._base)
        fits = int(above.max(initial=0)) < _MOST
        self._above = above.astype(np.uint32) if fits else above

    def __getitem__(self, nodes: Int32 | Int64 | slice) -> Int64:
        """Of some nodes, by their numbers."""
        if isinstance(nodes, slice):
            base = self._of_each(self._base)[nodes]
        else:
            base = self._base[nodes >> _BITS]
        base += self._above[nodes]
        return base

    def _of_each(self, base: Int64) -> Int64:
        return np.repeat(base, 1 << _BITS)[: self.size]
