"""When a run's steps end, with edits of its graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from commtrace.arrays import Int32, Int64, numbered
from commtrace.causal.replay.graph import Change, Graph, Lags, Latest

__all__ = ["StepEnds"]

_NEVER = np.iinfo(np.int64).min


class StepEnds:
    """When the last happens of what each step ends with, and of the operations done within it."""

    def __init__(self, graph: Graph, ends: Sequence[Int32], ended: Int32, step: Int64) -> None:
        """``ends`` are nodes by step, ``ended`` those of operations, each done in one ``step``."""
        self._steps = len(ends)
        self._last_with_all = ends[-1].size == ended.size
        done = np.full(graph.time_ns.size, -1, dtype=np.int32)
        done[ended] = step
        # What is an operation's end is none of the others, nor those of all again the last step's.
        others = [nodes[done[nodes] != at] for at, nodes in enumerate(ends)]
        if self._last_with_all:
            others[-1] = ended[:0]
        sizes = [nodes.size for nodes in others]
        group = np.concatenate((step, np.repeat(np.arange(len(sizes)) + self._steps, sizes)))
        self._groups = np.flatnonzero(np.bincount(group))
        self._latest = Latest(graph, np.concatenate((ended, *others)), numbered(group))

    def replayed(self, lag_ns: Lags, edits: Iterable[Change]) -> Int64:
        """With each of some changes of these lags: steps × edits."""
        return self._by_step(self._latest.replayed(lag_ns, edits))

    def at(self, time_ns: Int64) -> Int64:
        """With the times of every node in a replay."""
        return self._by_step(self._latest.at(time_ns)[:, None])[:, 0]

    def _by_step(self, latest_ns: Int64) -> Int64:
        found = np.full((self._steps, latest_ns.shape[1]), _NEVER)
        np.maximum.at(found, self._groups % self._steps, latest_ns)
        if self._last_with_all:
            joint = latest_ns[self._groups < self._steps]
            np.maximum(found[-1], joint.max(axis=0, initial=_NEVER), out=found[-1])
        return found
