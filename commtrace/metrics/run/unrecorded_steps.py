"""How long a program's steps take when nobody records them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import Int64, rows_by
from commtrace.diagnosis import Note
from commtrace.measures import measure
from commtrace.metrics.run.manifest_ranks import manifest_ranks
from commtrace.metrics.run.whole import profiler_steps
from commtrace.quantiles import median, quantile
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ADDED", "SLOWED", "UNRECORDED_STEP", "Pace", "pace", "recording_adds_ns", "slowed"]

SLOWED = "slowed-by-recording"
"""The note's code."""
UNRECORDED_STEP = "median step that is not recorded"
"""The evidence of a finding whose saving is of such steps."""
ADDED = "what recording adds to an operator, which the saving leaves out"
"""The same where there are no steps."""
_LEAST = 2
_MUCH, _FAR, _MOST = 1.1, 2, 20
_LITTLE = 0.97  # of a step
_LONGEST_NS = 1_000_000  # that it can add
_LONGER, _MANY = 1.5, 8
_SEVERAL = 2  # long ones among the steps: the program's own


class Pace(NamedTuple):
    """The median step as recorded, and behind what was recorded.

    Of a run without steps their mean, by what recording ``adds_ns`` to each operator.
    """

    recorded_ns: int
    unrecorded_ns: int
    adds_ns: int | None = None

    @property
    def is_slowed(self) -> bool:
        """Whether recording slows a step by more than steps differ."""
        return self.unrecorded_ns <= _LITTLE * self.recorded_ns

    @property
    def slowdown(self) -> float:
        """How many times as long a recorded step is."""
        return self.recorded_ns / self.unrecorded_ns

    @property
    def is_far_slower(self) -> bool:
        """Whether what takes long in a recorded step may be the recording."""
        return self.slowdown >= _FAR

    @property
    def times(self) -> float:
        """How long an unrecorded step is, of a recorded one; 1 where it is no shorter."""
        return self.unrecorded_ns / self.recorded_ns if self.is_slowed else 1.0

    @property
    def of_saving(self) -> str:
        """That a saving is of unrecorded steps, in words."""
        if self.adds_ns is not None:
            return (
                f"the saving is of a run that nobody records, which takes about {self.times:.2f} "
                f"of the time or less, as recording adds {1e-3 * self.adds_ns:.1f} µs or more to "
                "each operator: call commtrace.step() where a step ends, and it is timed"
            )
        return (
            f"the saving is of an unrecorded step, which takes {ms(self.unrecorded_ns)} in the "
            f"median, not {ms(self.recorded_ns)}"
        )


@measure
def pace(run: Measures) -> Pace | None:
    """Of hosts' steps, the median rank's.

    The recorder notes in the manifest how long steps took behind those that it recorded. None
    where it did not, has fewer than two of a rank, such as no recording makes 20 times as long, or
    steps of no length; and where some are long and some short before and behind, so that medians
    are of the ones or the others, or only before, and few are known behind: these have less to do.
    """
    each = [_known(one.get("unrecorded_steps_ns")) for one in manifest_ranks(run)]
    known = [its for its in each if its is not None]
    steps = profiler_steps(run)
    recorded = steps.ints("duration_ns")
    if not known or not recorded.size:
        return None
    its = Pace(round(median(recorded)), round(median([median(some) for some in known])))
    if not 0 < its.recorded_ns <= _MOST * its.unrecorded_ns:
        return None
    of_ranks = [recorded[rows] for rows in rows_by(steps.ints("rank")).values()]
    if all(map(_are_unlike, of_ranks)) and not any(map(_are_unlike_or_many, known)):
        return None
    by_means = float(recorded.mean() / np.concatenate(known).mean())
    if by_means / _MUCH <= its.slowdown <= by_means * _MUCH:
        return its
    return None if all(map(_are_mixed, (*of_ranks, *known))) else its


def recording_adds_ns(run: Measures) -> int | None:
    """What recording adds to an operator at least, as the recorder measured where no steps are."""
    known = [one.get("recording_adds_ns") for one in manifest_ranks(run)]
    times = [its for its in known if type(its) is int and 0 < its < _LONGEST_NS]
    return min(times, default=None)


def _are_unlike(steps_ns: Int64) -> bool:
    """Whether a rank's steps, or many of them, take far longer than its shortest."""
    return bool(quantile(steps_ns, 0.75) > _LONGER * steps_ns.min())


def _are_unlike_or_many(steps_ns: Int64) -> bool:
    return steps_ns.size >= _MANY or _are_unlike(steps_ns)


def _are_mixed(steps_ns: Int64) -> bool:
    """Whether several of a rank's steps are long, and as many short."""
    long = int((steps_ns > (steps_ns.min() + steps_ns.max()) / 2).sum())
    return min(long, steps_ns.size - long) >= _SEVERAL


def slowed(run: Measures) -> tuple[Note, ...]:
    """``slowed-by-recording``: recorded steps took over 1.1 times as long as those behind them."""
    its = pace(run)
    if its is None or its.slowdown < _MUCH:
        return ()
    message = (
        f"recording made steps {its.slowdown:.2g} times as long: {ms(its.recorded_ns)}, and "
        f"{ms(its.unrecorded_ns)} behind them (medians): hosts call operators faster when nobody "
        "records them"
    )
    if its.is_far_slower:
        message += "; if the first steps also have more to do, record later ones (--start-step)"
    return (Note(SLOWED, message),)


def _known(steps_ns: Any) -> Int64 | None:
    """The times in a list that anybody can have written."""
    if not isinstance(steps_ns, list) or len(steps_ns) < _LEAST:
        return None
    times = [its for its in steps_ns if type(its) is int and 0 < its < 1 << 62]
    return np.asarray(times, np.int64) if len(times) == len(steps_ns) else None
