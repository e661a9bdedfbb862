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
    """These calls (a flag for each) are not made, and nothing is packed or unpacked for them.

    Who packs and who unpacks are different ranks: before and behind the calls each has as much to
    do on its host as the one that has least.
    """
    calls, work = run_graph(run).calls, own_work(run)
    same_rank = calls.rank[1:] == calls.rank[:-1]
    bordering = which.copy()
    bordering[1:] |= which[:-1] & same_rank
    least = np.full(int(calls.operation.max()) + 1, np.inf)
    np.minimum.at(least, calls.operation[bordering], work.own_ns[bordering, HOSTS])
    wanted = work.own_ns[bordering].astype(np.float64)
    wanted[:, HOSTS] = least[calls.operation[bordering]]
    lag = needing_nobody(run, which, lag_ns)
    return changed(lag, scaled(run, work, wanted, bordering, lag, HOSTS))
