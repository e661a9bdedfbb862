"""A kind of edit of ranks, that can be tried on any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64
from commtrace.causal.edits.bounds import CriticalPath
from commtrace.causal.edits.run_edits import changed_step_ns, of_ranks, scaled
from commtrace.causal.replay.graph import Change, Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import OwnWork

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Kind", "Made"]

Made = Literal["all", "sure", "median", "shared"]


class Kind(Struct, frozen=True, eq=False):
    """An edit of ranks' ``work``: what is ``wanted`` of some calls of ranks edited together.

    ``wanted_ns`` is that of each call if its rank alone is edited. It changes these lags, with
    which ``path`` is the critical path.
    """

    run: Measures
    lag_ns: Lags
    work: OwnWork
    path: CriticalPath
    wanted: Callable[[tuple[int, ...], Bool], Float64]
    wanted_ns: Float64
    made: Made

    def change(self, ranks: tuple[int, ...], own: Int64 | None = None) -> Change:
        """What changes of the lags; of the graph's ``own`` edges only some, if they are given."""
        mine = of_ranks(self.run, ranks)
        if own is not None:
            is_before = np.zeros(mine.size, dtype=np.bool_)
            is_before[run_graph(self.run).own_call[own]] = True
            mine &= is_before
        wanted = self.wanted(ranks, mine)
        return scaled(self.run, self.work, wanted, mine, self.lag_ns, own=own)

    def saved(self, sets: Sequence[tuple[int, ...]]) -> Int64:
        """What each step is shorter if each of some sets is edited: steps × sets."""
        edits = (self.change(ranks) for ranks in sets)
        return self.path.step_ns[:, None] - changed_step_ns(self.run, self.lag_ns, edits)
