"""A run's graph in the making."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from commtrace.arrays import Bool, Int32, Int64, Signed, fewest, narrow, sorted_by
from commtrace.causal.replay.graph import Graph, arranged
from commtrace.causal.replay.node_times import NodeTimes
from commtrace.causal.run.calls import Calls
from commtrace.heap import give_back

__all__ = [
    "COPY",
    "DEVICE",
    "DEVICES",
    "FEED",
    "HOST",
    "HOSTS",
    "JOIN",
    "LAUNCH",
    "MEET",
    "OWN",
    "QUEUE",
    "TRANSFER",
    "WAIT",
    "Builder",
]

HOST, DEVICE, COPY, WAIT, LAUNCH, QUEUE, MEET, TRANSFER, JOIN, FEED = range(10)
"""Kinds of edges: a host's own work; a device's, computing or copying; from a wait's beginning to
its end; from a call to its start; from what ran before on the same stream or thread of gloo; from
a start to where all are there; from there to the end; from an end to who waited for it; a host's
own work again, from the start of a copy that it feeds from pageable memory."""
OWN = (HOST, DEVICE, COPY, FEED)
HOSTS, DEVICES = range(2)
"""The two columns of own work: that of host threads, and that of a device's streams."""

_AT_ONCE = 1 << 18  # edges
_T = TypeVar("_T", np.bool_, np.int8, np.int32, np.int64)


class Builder:
    """Nodes and edges, a block of them at a time; ``started`` and ``ended`` are nodes of calls.

    ``starts`` are those on GPUs that something came before, ``explained`` those of them that
    follow what an edge says they waited for.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.started: Int32 = np.full(calls.rank.size, -1, dtype=np.int32)
        self.ended: Int32 = np.full(calls.rank.size, -1, dtype=np.int32)
        self.starts = self.explained = 0
        self._times: list[Int64] = []
        self._ranks: list[Signed] = []
        self._rank_type = np.min_scalar_type(-1 - int(calls.rank.max(initial=0)))
        self._count = 0
        self._kinds: list[npt.NDArray[np.int8]] = []
        self._sources: list[Int32] = []
        self._targets: list[Int32] = []
        self._lags: list[Int64] = []
        self._own: list[Bool] = []
        self._own_calls: list[Int32] = []
        self._step_ends: list[tuple[Int32, Signed]] = []

    def ranks(self, node: Int32) -> Signed:
        """Each node's rank, in as few bytes as the highest needs, by the graph's numbers."""
        (ranks,) = self._ranks
        found = np.empty_like(ranks)
        found[node] = ranks
        return found

    def nodes(self, time_ns: Int64, rank: Int32 | Int64) -> Int64:
        """More of them; their numbers."""
        self._times.append(time_ns)
        self._ranks.append(rank.astype(self._rank_type))
        self._count += time_ns.size
        return np.arange(self._count - time_ns.size, self._count)

    def edges(
        self,
        kind: int,
        source: Int32 | Int64,
        target: Int32 | Int64,
        lag_ns: Int64 | int | None = None,
        segment: Int64 | None = None,
    ) -> None:
        """More of one kind: with the lag that is known, or that all have, else what was measured.

        ``segment`` has, of own work, the call whose segment each is part of; -1 behind the last.
        """
        lag = np.asarray(np.iinfo(np.int64).max if lag_ns is None else lag_ns, dtype=np.int64)
        self._kinds.append(np.broadcast_to(np.int8(kind), source.size))
        self._sources.append(source.astype(np.int32))
        self._targets.append(target.astype(np.int32))
        self._lags.append(np.broadcast_to(lag, source.size))
        own = np.broadcast_to(np.False_, source.size) if segment is None else segment >= 0
        self._own.append(own)
        if segment is not None:
            self._own_calls.append(segment[own].astype(np.int32))

    def end_steps(self, nodes: Int64, step: Int64) -> None:
        """Nodes before which a step is not over."""
        self._step_ends.append((nodes.astype(np.int32), fewest(step)))

    def step_ends(self) -> tuple[Int32, Signed]:
        """All of these, and their steps."""
        nodes, step = zip(*self._step_ends, strict=True) if self._step_ends else ((), ())
        return (
            np.concatenate((np.empty(0, np.int32), *nodes)),
            np.concatenate((np.empty(0, np.int8), *step)),
        )

    def graph(self) -> tuple[Graph, Int32, npt.NDArray[np.uint8], Int32] | None:
        """The graph and each node's number in it; once.

        And a bit for each of its edges, whether it is part of a segment, with the call of each that
        is. None where operations wait for themselves.
        """
        time = _whole(self._times, np.int64)
        far = _whole(self._lags, np.int64)
        source, target = (_whole(parts, np.int32) for parts in (self._sources, self._targets))
        kind = _whole(self._kinds, np.int8)
        own, call = np.packbits(_whole(self._own, np.bool_)), _whole(self._own_calls, np.int32)
        self._ranks = [np.concatenate(self._ranks)]
        give_back()  # the blocks: as much again
        _bind(time, source, target, far)
        lag, times = narrow(far), NodeTimes(time)
        del far, time
        made = arranged(times, source, target, lag, kind)
        if made is None:
            return None
        graph, node, edge = made
        its = edge[np.unpackbits(own, count=edge.size).astype(np.bool_)]
        is_own = np.zeros(edge.size, dtype=np.bool_)
        is_own[its] = True
        return graph, node, np.packbits(is_own), call[sorted_by(its)]


def _whole(parts: list[npt.NDArray[_T]], dtype: type[_T]) -> npt.NDArray[_T]:
    """The parts as one array; they are let go."""
    whole = np.concatenate([np.empty(0, dtype), *parts])
    parts.clear()
    return whole


def _bind(time: Int64, source: Int32, target: Int32, lag: Int64) -> None:
    """Make no lag's target later than it was, and one of those to it bind."""
    latest = np.full(time.size, np.iinfo(np.int64).min)
    parts = [slice(at, at + _AT_ONCE) for at in range(0, lag.size, _AT_ONCE)]
    for part in parts:
        since, until = time[source[part]], time[target[part]]
        lag[part] = np.minimum(lag[part], until - since)
        np.maximum.at(latest, target[part], since + lag[part])
    earlier = latest < time
    for part in parts:
        edges = part.start + np.flatnonzero(earlier[target[part]])
        since, until = time[source[edges]], time[target[edges]]
        # The one that came last gets what was measured.
        binds = since + lag[edges] == latest[target[edges]]
        lag[edges] = np.where(binds, until - since, lag[edges])
