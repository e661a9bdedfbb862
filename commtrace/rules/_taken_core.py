"""A rank that waits for a core in every step while the others hardly do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.causal.edits.run_edits import as_measured, saved
from commtrace.causal.run.replayable import replayable
from commtrace.causal.work.on_core import lags_on_cores
from commtrace.metrics.run.machines import machines
from commtrace.quantiles import median, quantile

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["TakenCore", "taken_core"]

_MUCH = 0.15  # of the time that its thread runs or waits for a core
_NEARLY_ALWAYS = 0.125  # of the steps at most it waits less in
_FAR_MORE = 4.0  # times as long as any other
_NEARLY = 0.75
_STEPS = 3


class TakenCore(Struct, frozen=True):
    """A ``rank`` that waits so long for a core in its median step, and the most of the others.

    Without that the steps would be shorter by ``cost_ns`` in all. Other threads of its own process
    run for ``own_ns``. It is ``bound`` to ``cores`` where others of its machine are left to others.
    """

    rank: int
    waits_ns: float
    others_ns: float
    own_ns: float
    cost_ns: int
    cores: tuple[int, ...]
    bound: bool

    @property
    def by_own(self) -> bool:
        """Whether these threads run for as long as it waits, or nearly."""
        return self.own_ns >= _NEARLY * self.waits_ns


def taken_core(run: Measures) -> TakenCore | None:
    """The rank whose core something else takes, if it is one; None where nobody knows."""
    known = {rank: its.steps for rank, its in machines(run).items() if its.steps}
    if len(known) < 2 or len(known) < len(run.rows("ranks")) or not replayable(run):
        return None
    waits = {rank: 1e3 * median([waited for _, _, waited, _ in its]) for rank, its in known.items()}
    rank = max(waits, key=waits.__getitem__)
    others_ns = max(its for other, its in waits.items() if other != rank)
    shares = np.asarray([waited / max(ran + waited, 1) for _, ran, waited, _ in known[rank]])
    is_always = shares.size >= _STEPS and quantile(shares, _NEARLY_ALWAYS) >= _MUCH
    if not is_always or waits[rank] < _FAR_MORE * others_ns:
        return None
    measured, without = as_measured(run), lags_on_cores(run)
    if without is measured:
        return None
    machine, each = machines(run)[rank], known[rank]
    cores, usable = machine.cores or 0, machine.usable_cores or 0
    return TakenCore(
        rank=rank,
        waits_ns=waits[rank],
        others_ns=others_ns,
        own_ns=1e3 * median([max(process - ran, 0) for _, ran, _, process in each]),
        cost_ns=int(saved(run, measured, [without]).sum()),
        cores=tuple(machine.core_ids or ()),
        bound=0 < usable < cores,
    )
