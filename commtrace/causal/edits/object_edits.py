"""What if no objects were sent: they are pickled before, and unpickled behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool
from commtrace.causal.edits.run_edits import needing_nobody, scaled
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.calls import Calls
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import idle_ns, own_work
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["as_tensors", "without_objects"]

_BYTES_PER_NS = 0.004  # pickled or unpickled where they are many small tensors


def as_tensors(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These calls (a flag for each) are made, but nothing is pickled or unpickled for them.

    That is what hosts do right before the first of a row and behind the last in which no operator
    runs, no more than so many bytes take if they are slow to pack.
    """
    its = run_graph(run)
    first, behind = _bordering(its.calls, which)
    size = matched(run).operations.ints("size_bytes")[its.calls.operation].clip(min=0)
    most = np.where(first, np.roll(size, -1), np.roll(size, 1)) / _BYTES_PER_NS
    work, bordering = own_work(run), first | behind
    wanted = work.own_ns[bordering].astype(np.float64)
    wanted[:, HOSTS] -= np.minimum(idle_ns(run), most)[bordering]
    return changed(lag_ns, scaled(run, work, wanted.clip(min=0), bordering, lag_ns, HOSTS))


def _bordering(calls: Calls, which: Bool) -> tuple[Bool, Bool]:
    """The first calls of each row of some, and those right behind the last, on the same rank."""
    same_rank = np.append(False, calls.rank[1:] == calls.rank[:-1])
    behind_one = same_rank & np.roll(which, 1)
    return which & ~behind_one, ~which & behind_one


def without_objects(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These calls (a flag for each) are not made, and nothing is pickled or unpickled for them.

    Before the first of a row the sender's host has as much to do as the receiver's with least to
    do, and behind the last a receiver's has no more than the sender's.
    """
    calls, work = run_graph(run).calls, own_work(run)
    own = work.own_ns[:, HOSTS].astype(np.float64)
    first, behind = _bordering(calls, which)
    sends = np.where(behind, np.roll(calls.is_root, 1), calls.is_root)
    wanted = own.copy()
    for mine, others in ((first & sends, first & ~sends), (behind & ~sends, behind & sends)):
        least = np.full(int(calls.operation.max()) + 1, np.inf)
        np.minimum.at(least, calls.operation[others], own[others])
        wanted[mine] = np.minimum(own, least[calls.operation])[mine]
    lag = needing_nobody(run, which, lag_ns)
    bordering = first | behind
    both = work.own_ns[bordering].astype(np.float64)
    both[:, HOSTS] = wanted[bordering]
    return changed(lag, scaled(run, work, both, bordering, lag, HOSTS))
