"""What if no objects were sent: they are pickled before, and unpickled behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool
from commtrace.causal.edits.run_edits import needing_nobody, scaled
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["without_objects"]


def without_objects(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These calls (a flag for each) are not made, and nothing is pickled or unpickled for them.

    Before the first of a row the sender's host has as much to do as the receiver's with least to
    do, and behind the last a receiver's has no more than the sender's.
    """
    calls, work = run_graph(run).calls, own_work(run)
    own = work.own_ns[:, HOSTS].astype(np.float64)
    same_rank = np.append(False, calls.rank[1:] == calls.rank[:-1])
    behind_one = same_rank & np.roll(which, 1)
    first, behind = which & ~behind_one, ~which & behind_one
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
