"""Who is at the other end of sends and recvs, as far as their calls or their matches tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["message_peers"]

_BOTH = 2


def message_peers(run: Measures, rows: Int64) -> Int64:
    """The other rank of these rows of ``collectives``; null where nothing tells, and of others.

    A call on a CPU names its peer by the rank in a group that it does not name: in several groups
    at once only its match tells who that is.
    """
    called = run.rows("collectives", rows)
    peer: Int64 = called.ints("peer").copy()
    unknown = np.flatnonzero((peer == NULL) & called.coded("op").where(POINT_TO_POINT.__contains__))
    if not unknown.size:
        return peer
    waits = matched(run).waits
    operation, rank = waits.ints("operation"), waits.ints("rank")
    of = operation[rows[unknown]]
    both = np.bincount(operation)[of] == _BOTH
    of, unknown = of[both], unknown[both]
    peer[unknown] = np.bincount(operation, rank)[of].astype(np.int64) - rank[rows[unknown]]
    return peer
