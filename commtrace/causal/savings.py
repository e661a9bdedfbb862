"""What an edit saves: alone, and with the ranks mended that delay the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import Int64, among, rows_by
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.edits.own_pace import at_own_pace, unrecorded_pace
from commtrace.causal.edits.rank_edits import copying_within, not_feeding
from commtrace.causal.edits.run_edits import as_measured, steps_at, transferring_less
from commtrace.causal.replay.graph import Lags, replayed
from commtrace.causal.run.replayable import need_replay
from commtrace.causal.run.run_graph import run_graph
from commtrace.diagnosis import CannotLook, Evidence
from commtrace.metrics.rank.rows_of import ranks_of
from commtrace.metrics.run.unrecorded_steps import ADDED, UNRECORDED_STEP
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = [
    "Edit",
    "Saving",
    "mended_lags",
    "of_copies",
    "of_transfers",
    "of_unrecorded",
    "saving",
    "taking_less",
]

Edit = Callable[[Lags], Lags]
"""Makes of a graph's lags those with something mended."""


class Saving(Struct, frozen=True):
    """What is saved: ``cost_ns`` alone, ``on_top_ns`` with those mended who delay the run.

    ``replayed_step_ns`` is the median step with it mended alone. ``of_steps`` says that all are of
    steps that nobody records, if they are. Without a replay, ``why`` not, and ``cost_ns`` is an
    estimate.
    """

    cost_ns: int
    on_top_ns: int | None = None
    replayed_step_ns: int | None = None
    why: str | None = None
    of_steps: tuple[Evidence, ...] = ()

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """That it is an estimate, if it is one, or of steps that nobody records."""
        if self.why is not None:
            said = f"estimated saving, as a replay {self.why}"
            return (Evidence(said, self.cost_ns, "ns"),)
        return self.of_steps

    @property
    def left_ns(self) -> int:
        """What is saved once those are mended who delay the run; alone where no replay says."""
        return self.cost_ns if self.on_top_ns is None else self.on_top_ns

    def and_also(self, more_ns: int, steps: int) -> Saving:
        """The same, and so much more of so many steps."""
        on_top = None if self.on_top_ns is None else self.on_top_ns + more_ns
        return self._of(self.cost_ns + more_ns, on_top, steps)

    def of_part(self, part: float, steps: int) -> Saving:
        """So large a part of the same."""
        on_top = None if self.on_top_ns is None else round(part * self.on_top_ns)
        return self._of(round(part * self.cost_ns), on_top, steps)

    def at_most(self, cost_ns: int | None, run: Measures) -> Saving:
        """The same, where no more can be saved than that; None is no limit."""
        if cost_ns is None or self.why is not None or self.cost_ns <= cost_ns:
            return self
        return self._of(cost_ns, min(self.left_ns, cost_ns), len(run_graph(run).step_ns))

    def _of(self, cost_ns: int, on_top_ns: int | None, steps: int) -> Saving:
        """The same that saves so much, in so many steps."""
        step, more_ns = self.replayed_step_ns, cost_ns - self.cost_ns
        step = None if step is None else max(round(step - more_ns / max(steps, 1)), 0)
        return Saving(cost_ns, on_top_ns, step, self.why, self.of_steps)


def saving(run: Measures, edit: Edit, estimate_ns: float, min_step_share: float) -> Saving:
    """What an edit saves in a replay; where the trace shows too little for one, the estimate.

    On GPUs of a run whose hosts launch as fast as they do when nobody records them.
    """
    try:
        need_replay(run)
        _need_waits(run)
        measured = as_measured(run)
        before = at_own_pace(run, measured)
        alone, left = _shorter(run, before, edit(before))
    except CannotLook as reason:
        return Saving(round(estimate_ns), why=str(reason))
    mended = mended_lags(run, min_step_share)
    without = at_own_pace(run, mended)
    on_top = alone if mended is measured else _shorter(run, without, edit(without))[0]
    found = Saving(alone, on_top, int(median(left)), None, of_unrecorded(run))
    its, took_ns = unrecorded_pace(run), alone + int(left.sum())
    if its is None or alone <= (most_ns := len(left) * its.unrecorded_ns):
        return found
    return found.at_most(most_ns * alone // took_ns, run)  # recorded, some steps took far longer


def of_unrecorded(run: Measures) -> tuple[Evidence, ...]:
    """The evidence that what is saved is of steps that nobody records, if it is."""
    its = unrecorded_pace(run)
    if its is None:
        return ()
    if its.adds_ns is not None:
        return (Evidence(ADDED, its.adds_ns, "ns"),)
    return (Evidence(UNRECORDED_STEP, its.unrecorded_ns, "ns"),)


def _need_waits(run: Measures) -> None:
    """CannotLook where the trace of a GPU shows none of its host's waits: they look like work."""
    calls = run_graph(run).calls
    on_gpu = calls.rank[~calls.on_cpu]
    if not among(on_gpu, [*ranks_of(run, "blocking_calls")]).all():
        raise CannotLook("needs the calls by which hosts wait for GPUs, which the trace lacks")


def _shorter(run: Measures, before: Lags, after: Lags) -> tuple[int, Int64]:
    """What a run is shorter, to the end of its last step or to its own, and each step then.

    Its end may be that of a rank that nobody waits for.
    """
    (was, end), (now, earlier) = (_steps_and_end(run, lag) for lag in (before, after))
    return max(int((was - now).sum()), end - earlier, 0), now


def _steps_and_end(run: Measures, lag_ns: Lags) -> tuple[Int64, int]:
    time = replayed(run_graph(run).graph, lag_ns)
    return steps_at(run, time), int(time.max())


def mended_lags(run: Measures, min_step_share: float) -> Lags:
    """The lags without those who delay the run; as measured where nobody knows who does."""
    try:
        return culprits(run, min_step_share).lag_ns
    except CannotLook:
        return as_measured(run)


def of_copies(
    run: Measures,
    copies: Sequence[tuple[Rows, float]],
    estimate_ns: float,
    share: float,
    *,
    pinned: Rows | None = None,
) -> Saving:
    """What is saved if copies, rows of the table, ran at so many GB/s each.

    Of those that are ``pinned`` then, from pageable memory, no host waits for any.
    """

    def edit(lag_ns: Lags) -> Int64:
        lag: Int64 = lag_ns.astype(np.int64)
        for some, gb_s in copies:
            most, start = some.ints("size_bytes") / gb_s, some.ints("start_ns")
            for (rank,), at in rows_by(some.ints("rank")).items():
                copying_within(run, rank, start[at], most[at], lag)
        if pinned is not None:
            for (rank,), at in rows_by(pinned.ints("rank")).items():
                not_feeding(run, rank, pinned.ints("start_ns")[at], lag)
        return lag

    return saving(run, edit, estimate_ns, share)


def of_transfers(
    run: Measures,
    known: Rows,
    less_ns: npt.NDArray[np.floating[Any]],
    estimate_ns: float,
    min_step_share: float,
    most_ns: float = 0.0,
) -> Saving:
    """What is saved if operations (rows with ``operation``) take so much less once all are there.

    Not worked out, the estimate, where neither that is worth reporting nor the most it may be.
    """
    if not worth_reporting(max(estimate_ns, most_ns), run, min_step_share):
        return Saving(round(estimate_ns))
    return saving(run, taking_less(run, known, less_ns), estimate_ns, min_step_share)


def taking_less(run: Measures, known: Rows, less_ns: npt.NDArray[np.floating[Any]]) -> Edit:
    """Operations (rows with ``operation``) take so much less once all are there."""
    number, less = known.ints("operation"), np.rint(less_ns.clip(min=0)).astype(np.int64)

    def edit(lag_ns: Lags) -> Lags:
        operation = run_graph(run).calls.operation
        last = max(int(its.max(initial=0)) for its in (operation, number))
        less_of = np.zeros(1 + last, np.int64)
        less_of[number] = less
        return transferring_less(run, less_of[operation], lag_ns)

    return edit
