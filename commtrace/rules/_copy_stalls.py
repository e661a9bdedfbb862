"""Idle time of GPUs beside small copies from and to their hosts, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, most
from commtrace.comms import is_update
from commtrace.intervals import Intervals, covered, union, united
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.rank.timelines import Timeline, behind, elsewhere
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["CopyStalls", "copy_stalls", "on_host", "steps_without_update"]

_LOOP = 3  # copies in a step: fewer are values read each for itself
_PASS = 50  # kernels: of a model, rather than of a layer
_VLLM_STEP = "gpu_model_runner: preprocess"


class CopyStalls(Struct, frozen=True):
    """Idle time next to small copies.

    ``copies`` are those with any, and those ``needed`` that must stay; ``kept_ns`` is ``idle_ns``
    without the usual gaps.
    """

    line: Timeline
    copies: Bool
    needed: Bool
    begin_ns: Int64
    end_ns: Int64
    idle_ns: int
    kept_ns: int
    usual_ns: float

    @property
    def count(self) -> int:
        """The copies."""
        return int(self.copies.sum())

    @property
    def cost_ns(self) -> int:
        """What all cost but those that remain."""
        return round(self.kept_ns * (1 - int(self.needed.sum()) / max(self.count, 1)))


def copy_stalls(line: Timeline, copies: Bool, run: Measures, max_stall_us: float) -> CopyStalls:
    """The idle time of a device beside some of its copies, as far as they explain it.

    A longer stall than that is none of a copy. What the rank's other devices and collectives do
    meanwhile is left out, and what follows from the result of a step of inference.
    """
    beside = line.starved_beside(copies) & (line.idle_ns <= 1e3 * max_stall_us)
    begin, end = (line.start_ns - line.idle_ns)[beside], line.start_ns[beside]
    worked = united(elsewhere(line, run), on_host(line, run, since="start_ns"))
    idle = end - begin - covered(begin, end, worked)
    usual, answered = _usual_ns(line), _answered(line, copies, run)[beside]
    kept = np.where(line.with_host[beside], idle, (idle - usual).clip(min=0))
    counts = (idle > 0) & ~answered
    beside[beside] = counts
    begin, end, idle, kept = (its[counts] for its in (begin, end, idle, kept))
    stalling = copies & (beside | np.concatenate((beside[1:], [False])))
    needed = _needed(line, stalling, run)
    return CopyStalls(line, stalling, needed, begin, end, int(idle.sum()), int(kept.sum()), usual)


def _answered(line: Timeline, copies: Bool, run: Measures) -> Bool:
    """What is behind the result of a step of inference: what comes next follows from it."""
    if (steps := steps_without_update(line, run)) is None:
        return np.zeros_like(copies)
    return behind(_last_of_each(line, copies & line.kinds.being("DtoH"), steps))


def _needed(line: Timeline, copies: Bool, run: Measures) -> Bool:
    """One copy of all; of several of a size in a step the last, which fetches what all brought.

    Where no optimizer steps, of each step the last to and from the host: a step of inference has to
    be told its input and to tell its result.
    """
    if (steps := steps_without_update(line, run)) is not None:
        return _last_of_each(line, copies, steps)
    needed = np.zeros_like(copies)
    needed[np.flatnonzero(copies)[-1:]] = True
    begins = _profiler_steps(line, run)
    step = np.searchsorted(begins, line.launch_ns, side="right")
    for size in distinct(line.size_bytes[copies]).tolist():
        alike = copies & (line.size_bytes == size)
        if np.count_nonzero(alike) >= _LOOP * distinct(step[alike]).size:
            needed |= _last_of_each(line, alike, begins)
    return needed


def _last_of_each(line: Timeline, copies: Bool, begins: Int64) -> Bool:
    """The last of these copies in each step, of each kind."""
    at = np.flatnonzero(copies)
    way = codes(np.searchsorted(begins, line.launch_ns[at], side="right"), line.kinds.take(at))
    last = np.zeros_like(copies)
    last[most(way, at, int(way.max(initial=-1)) + 1)] = True
    return last


def steps_without_update(line: Timeline, run: Measures) -> Int64 | None:
    """When a rank's steps begin, if it has any and no optimizer steps in them.

    vLLM marks them itself; the profiler's, if there are any, may hold several. Where none are
    marked, and nothing runs backward, what the host is told behind a whole pass ends one.
    """
    steps = rows_of_rank(run, "steps", line.rank)
    label = steps.coded("label")
    marked = label.being(_VLLM_STEP)
    begins = np.sort(steps.ints("start_ns")[marked])
    begins = begins if begins.size else _profiler_steps(line, run)
    begins = begins if begins.size else _behind_results(line, run)
    updates = any(map(is_update, label.occurring()))
    return None if updates or not begins.size else begins


def _behind_results(line: Timeline, run: Measures) -> Int64:
    """The times behind copies to the host, if these are mostly a pass of kernels apart."""
    told = np.flatnonzero(line.kinds.being("DtoH"))
    ops = rows_of_rank(run, "ops", line.rank).coded("name")
    apart = told.size > 1 and median(np.diff(told)) >= _PASS
    trains = ops.where(lambda name: name.startswith("autograd::")).any()
    behind_ns: Int64 = line.launch_ns[told] + 1
    return behind_ns if apart and not trains else behind_ns[:0]


def _profiler_steps(line: Timeline, run: Measures) -> Int64:
    """When a rank's steps begin, in their order."""
    steps = rows_of_rank(run, "steps", line.rank)
    begins: Int64 = np.sort(steps.ints("start_ns")[~steps.coded("label").known])
    return begins


def _usual_ns(line: Timeline) -> float:
    """The median gap before work that has no copy from or to the host next to it."""
    gaps = line.idle_ns[~(line.with_host | behind(line.with_host))]
    return median(gaps) if gaps.size else 0.0


def on_host(line: Timeline, run: Measures, *, since: str) -> Intervals:
    """When the rank's collectives on the CPU ran, from their launch or their start on."""
    calls = rows_of_rank(run, "collectives", line.rank)
    rows = np.flatnonzero(calls.coded("device").being("cpu"))
    begin, start_ns, duration_ns = (
        calls.ints(name)[rows] for name in (since, "start_ns", "duration_ns")
    )
    return union(np.where(begin == NULL, start_ns, begin), start_ns + duration_ns)
