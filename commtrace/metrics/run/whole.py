"""The time that costs are a share of: all that could be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import NULL, Int64, codes, first_rows
from commtrace.comms import is_update
from commtrace.diagnosis import Note
from commtrace.intervals import total, union
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import measured_ranks
from commtrace.metrics.rank.spans import rank_spans
from commtrace.metrics.run.sampled import is_sampled

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = [
    "Whole",
    "has_steps",
    "of_time",
    "part_of_time",
    "profiler_steps",
    "share_pct",
    "step_count",
    "steps_without_work",
    "trains",
    "wall_ns",
    "whole",
    "worth_reporting",
]


_AS_GOOD_AS = 0.95  # of a share: savings are off by a twentieth in the median


def worth_reporting(cost_ns: float, run: Measures, share: float) -> bool:
    """Whether a cost may well be that share of the steps' time; of the run's without steps.

    What is worth as much must not be missed for the error of its estimate.
    """
    time_ns = whole(run).time_ns
    return min(cost_ns, time_ns) > 0 and min(cost_ns, time_ns) >= _AS_GOOD_AS * share * time_ns


def wall_ns(end_ns: Int64, saved_ns: npt.NDArray[np.floating[Any]]) -> int:
    """The time saved by operations that end so much earlier, once where several run at once.

    An operation whose end on the run's clock is unknown counts by itself.
    """
    known = end_ns != NULL
    end = end_ns[known]
    saved = np.rint(saved_ns).astype(np.int64)
    return total(union(end - saved[known], end)) + int(saved[~known].sum())


def share_pct(cost_ns: float, run: Measures) -> float:
    """A cost as a share of the steps' time, in percent; of the run's without steps."""
    time_ns = whole(run).time_ns
    return 100 * min(cost_ns, time_ns) / max(time_ns, 1)


def of_time(run: Measures) -> str:
    """What ``share_pct`` is a share of, in words."""
    return "of the steps' time" if whole(run).in_steps else "of the run's time"


def part_of_time(run: Measures) -> str:
    """What times by step are of: a run without steps is replayed in ten parts."""
    return "step" if has_steps(run) else "tenth of the run"


_LOST_STEPS = ("truncated", "damaged")  # notes: a profiler writes a step behind what it holds
_HELD = 0.9  # of the run's span: steps that last longer hold its work


class Whole(Struct, frozen=True):
    """``time_ns`` is the time of the steps if ``in_steps``, else of the whole run."""

    time_ns: int
    in_steps: bool


@measure
def whole(run: Measures) -> Whole:
    """The steps of the rank with most of them, where they hold the run's work; else the run.

    Steps last from the first one's start until all is done that their hosts launched, the
    run from a rank's first start to its last end. Where hosts run ahead devices begin with the
    steps when they are done with what was launched before. Ranks can have recorded unlike numbers
    of steps: what any of them could save is a share of the longest.
    """
    span_ns = _longest_ns(run, "begin_ns", "end_ns")
    steps_ns = _longest_ns(run, "begin_in_steps_ns", "end_in_steps_ns")
    if not has_steps(run) or steps_ns < _HELD * span_ns:
        return Whole(span_ns, in_steps=False)
    return Whole(
        _longest_ns(run, "begin_in_steps_ns", "end_in_steps_ns", "behind_ns"), in_steps=True
    )


def step_count(run: Measures) -> int:
    """How many steps the rank with most of them has; 1 where shares are of the run."""
    if not whole(run).in_steps:
        return 1
    steps = profiler_steps(run)
    rank = steps.ints("rank")
    once = first_rows(codes(rank, steps.ints("step")))
    return int(np.unique(rank[once], return_counts=True)[1].max(initial=0))


def steps_without_work(run: Measures) -> tuple[Note, ...]:
    """``steps-without-work``: shares are of the run, since its work is not in its steps."""
    if whole(run).in_steps or not has_steps(run):
        return ()
    message = "the profiler's steps hold too little of what ran: shares are of the run's span; "
    if any(note.code in _LOST_STEPS for note in run.notes):
        message += "the last ones are not in what is left of a file"
    elif is_sampled(run):
        message += "most events are missing, others may be among them"
    else:
        message += "call prof.step(), or commtrace.step() if commtrace records, in each iteration"
    return (Note("steps-without-work", message),)


@measure
def profiler_steps(run: Measures) -> Rows:
    """The rows of ``steps`` that are the profiler's own numbered steps, no label's."""
    steps = run.rows("steps")
    return steps.take(~steps.coded("label").known & (steps.ints("step") != NULL))


def has_steps(run: Measures) -> bool:
    """Whether any rank's profiler marked its steps."""
    return not run.rows("steps").coded("label").known.all()


def trains(run: Measures) -> bool:
    """Whether any optimizer marked its steps."""
    return bool(run.rows("steps").coded("label").where(is_update).any())


def _longest_ns(run: Measures, begin: str, end: str, behind: str | None = None) -> int:
    """From first start to last end, while recorded, of the rank where that is longest.

    Of these columns of ``rank_spans``; not before it is no longer behind.
    """
    longest = 0
    for ranks in measured_ranks(run):
        spans: Any = rank_spans(run, *ranks)
        begins = spans[begin] if behind is None else np.maximum(spans[begin], spans[behind])
        for rank, first, last in zip(ranks, begins.tolist(), spans[end].tolist(), strict=True):
            if first <= last:
                longest = max(longest, last - first - run.paused_ns(rank, first, last))
    return longest
