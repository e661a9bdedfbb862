"""What ranks waited for: others that came late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, distinct
from commtrace.causal.replay.graph import Lags, replayed
from commtrace.causal.run.builder import MEET
from commtrace.causal.run.run_graph import run_graph

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["AWAITED", "Waits", "awaited", "works_by_turns"]

AWAITED = ("collective", "root", "send", "recv")
"""What others wait for: a rank in an operation that needs all, a root, a sender, a receiver."""
_BY_TURNS = 1.5  # times as long as the others


class Waits(Struct, frozen=True, eq=False):
    """The waits of others for some ranks: from ``start_ns`` to ``end_ns``, ``kind`` of AWAITED.

    ``call`` is the call that waited, a row of the graph's.
    """

    call: Int64
    start_ns: Int64
    end_ns: Int64
    kind: Int64

    @property
    def mostly(self) -> str:
        """Of which kind most of the time is."""
        time = np.bincount(self.kind, weights=self.end_ns - self.start_ns, minlength=len(AWAITED))
        return AWAITED[int(time.argmax())]


def awaited(run: Measures, ranks: tuple[int, ...], lag_ns: Lags) -> Waits:
    """Where others waited until the last of these ranks came, or would with these lags."""
    its = run_graph(run)
    calls, time = its.calls, replayed(its.graph, lag_ns)
    start_ns = time[its.started]
    meets = np.flatnonzero(its.graph.kind == MEET)
    source, met = its.call_of[its.graph.source[meets]], its.graph.target[meets]
    late = np.isin(calls.rank[source], ranks) & (start_ns[source] == time[met])
    last = np.full(time.size, -1, dtype=np.int32)
    last[met[late]] = source[late]
    call = np.flatnonzero(~np.isin(calls.rank, ranks) & (last[its.met] >= 0))
    source = last[its.met[call]]
    waits = start_ns[source] > start_ns[call]
    call, source = call[waits], source[waits]
    kind = np.where(calls.is_p2p[source], np.where(calls.is_send[source], 2, 3), 0)
    kind = np.where(calls.from_root[call] & calls.is_root[source], 1, kind)
    return Waits(call, calls.start_ns[call], calls.last_ns[call], kind)


def works_by_turns(run: Measures, ranks: tuple[int, ...]) -> bool:
    """Whether they wait far longer for the others than these for anybody, as a learner for actors.

    Who only has more to do than others of its kind hardly waits.
    """
    calls = run_graph(run).calls
    waits = np.maximum(calls.last_ns - calls.start_ns, 0)
    each, every = np.bincount(calls.rank, waits), distinct(calls.rank.astype(np.int64))
    mine = np.isin(every, ranks)
    if mine.all():
        return False
    own, others = (float(each[every[which]].mean()) for which in (mine, ~mine))
    return own > _BY_TURNS * max(others, 1.0)
