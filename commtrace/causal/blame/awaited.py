"""What ranks waited for: others that came late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, distinct, least, rows_by
from commtrace.causal.replay.graph import Lags, replayed
from commtrace.causal.run.builder import MEET
from commtrace.causal.run.calls import Calls
from commtrace.causal.run.run_graph import run_graph
from commtrace.intervals import total, union
from commtrace.metrics.run.stages import other_stages

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["AWAITED", "Waits", "awaited", "serves_all", "works_by_turns"]

AWAITED = ("collective", "root", "send", "recv")
"""What others wait for: a rank in an operation that needs all, a root, a sender, a receiver."""
_BY_TURNS = 1.5  # times as long as the others
_IN_PARTS = 0.25  # the same of a hub
_AMONG_OTHERS = 0.1  # of what others wait: what a learner's actors do among themselves
_OF_TWO = 0.5  # the same of two ranks that send each other all


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

    Who only has more to do than others of its kind hardly waits. Of a hub a quarter as long tells,
    but of no stage between the ends of a pipeline, which two others wait for; of two ranks that
    only exchange messages half as long, as of stages with one micro-batch. A recv whose send is
    unknown waits for somebody.
    """
    calls = run_graph(run).calls
    alone = calls.is_p2p & ~calls.is_send & (np.bincount(calls.operation)[calls.operation] == 1)
    until = np.maximum(np.where(alone, calls.end_ns, calls.last_ns), calls.start_ns)
    each = {
        rank: total(union(calls.start_ns[at], until[at]))
        for (rank,), at in rows_by(calls.rank).items()
    }
    mine = [waits for rank, waits in each.items() if rank in ranks]
    rest = [waits for rank, waits in each.items() if rank not in ranks]
    if not rest:
        return False
    own, others = (float(np.mean(its)) for its in (mine, rest))
    times = _BY_TURNS
    if _is_hub(calls, ranks):
        if len(rest) == len(mine) == 1:
            times = _OF_TWO
        elif not other_stages(run, ranks):
            times = _IN_PARTS
    return own > times * max(others, 1.0)


def serves_all(run: Measures, ranks: tuple[int, ...]) -> bool:
    """Whether several others exchange messages with them alone, as actors with a learner.

    And most calls are messages; but no stages, of three of which the middle one has two others.
    """
    calls = run_graph(run).calls
    others = distinct(calls.rank[~np.isin(calls.rank, ranks)])
    if 2 * calls.is_p2p.sum() <= calls.rank.size or others.size < 2 or other_stages(run, ranks):
        return False
    return _is_hub(calls.taken(calls.is_p2p), ranks)


def _is_hub(calls: Calls, ranks: tuple[int, ...]) -> bool:
    """Whether nearly all that others do together is from or to these ranks, as messages and roots.

    By the time that whoever of them comes last to it is in it.
    """
    mine = np.isin(calls.rank, ranks)
    rooted = calls.from_root | calls.to_root
    if (mine & ~calls.is_p2p & ~rooted).any():
        return False
    number = calls.operation
    with_mine = np.bincount(number, np.where(rooted, mine & calls.is_root, mine)) > 0
    others = ~mine & (np.bincount(number) > 1)[number]
    took = least(number[others], (calls.end_ns - calls.start_ns)[others], with_mine.size)
    took = np.where(np.bincount(number[others], minlength=with_mine.size) > 0, took, 0)
    return int(took[~with_mine].sum()) <= _AMONG_OTHERS * int(took.sum())
