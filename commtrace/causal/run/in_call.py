"""How long hosts were in their calls of sends and recvs, where gloo moves the bytes.

Whose peer has called already writes them there and then, in the caller's thread: that is no work
of the rank's own, and no idleness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, codes
from commtrace.causal.rank.moments import Moments
from commtrace.causal.run.calls import Calls
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["in_call_ns"]


def in_call_ns(run: Measures, calls: Calls) -> Int64:
    """How long the thread of each send and recv was in the call; 0 of others and if unknown."""
    answer = np.zeros(calls.rank.size, dtype=np.int64)
    asked = np.flatnonzero(calls.is_p2p & calls.on_cpu)
    if not asked.size:
        return answer
    ops = run.rows("ops")
    ops = ops.take(ops.coded("kind").being("communication"))
    rank = ops.ints("rank")
    start = on_run(run, rank, ops.ints("start_ns"))
    place = codes(
        np.append(calls.rank[asked], rank), np.append(calls.thread[asked], ops.ints("thread"))
    )
    at = Moments(place[asked.size :], start).last(place[: asked.size], calls.launch_ns[asked])
    end = np.append(start + ops.ints("duration_ns"), 0)[at]
    answer[asked] = np.maximum(end - calls.launch_ns[asked], 0)
    return answer
