"""Which steps of a recording count: warm-up and single outlying steps do not decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commtrace.arrays import Bool, Float64, Int64
from commtrace.quantiles import median

__all__ = ["Counted", "counted", "counted_together", "regular_peaks"]

_FAR = 6  # times the scatter
_LEAST = 0.1  # of the median step: nearer is nothing to leave out
_WARM_UP = 0.25  # of the steps, at most
_OUTLYING = 0.125  # of the steps, at most, and one if they are few: what is more often is usual


@dataclass(frozen=True, eq=False)
class Counted:
    """A flag for each step; ``warm_up`` and ``outlying`` are those that do not count."""

    warm_up: Bool
    outlying: Bool

    @property
    def steps(self) -> Bool:
        """Those that count."""
        kept: Bool = ~(self.warm_up | self.outlying)
        return kept


def counted(step_ns: Int64) -> Counted:
    """The first steps, while they are far longer than the median; then any few that are far off.

    >>> counted(np.array([90, 20, 21, 22, 20, 70, 21, 20])).steps.tolist()
    [False, True, True, True, True, False, True, True]
    """
    nothing = np.zeros(step_ns.size, dtype=np.bool_)
    if step_ns.size < 3:
        return Counted(nothing, nothing)
    far = _far(step_ns)
    first = int(np.argmin(np.append(far & (step_ns > median(step_ns)), False)))
    warm_up = np.arange(step_ns.size) < min(first, int(_WARM_UP * step_ns.size))
    outlying = far & ~warm_up
    if outlying.sum() > max(1, int(_OUTLYING * step_ns.size)):
        outlying = nothing
    return Counted(warm_up, outlying)


def counted_together(recordings: Sequence[Int64]) -> list[Counted]:
    """Of several recordings of one program: what most of them have is no chance, and counts.

    >>> stalls = np.array([20, 21, 70, 22, 20, 21, 20, 21])
    >>> [bool(its.steps.all()) for its in counted_together([stalls, np.roll(stalls, 2)])]
    [True, True]
    """
    each = [counted(step_ns) for step_ns in recordings]
    disturbed = sum(bool(its.outlying.any()) for its in each)
    if disturbed < 2 or 2 * disturbed <= len(each):
        return each
    return [replace(its, outlying=np.zeros_like(its.outlying)) for its in each]


def regular_peaks(values: Float64) -> Bool:
    """Those that are far above the others in every so many steps; none if they are not.

    >>> regular_peaks(np.array([2.0, 2, 9, 2, 2, 8, 2, 2])).nonzero()[0].tolist()
    [2, 5]
    """
    above = values - median(values)
    peaks = _far(values) & (above > above.max(initial=0) / 2)
    at = np.flatnonzero(peaks)
    if at.size > 1:
        gaps = np.diff(at)
        if (gaps == gaps[0]).all() and max(at[0], values.size - 1 - at[-1]) < gaps[0]:
            return np.asarray(peaks)
    return np.zeros(values.size, dtype=np.bool_)


def _far(values: Int64 | Float64) -> Bool:
    """Which are many times the scatter off the median: that of their distances from it."""
    middle = median(values)
    off = np.abs(values - middle)
    far: Bool = off > max(_FAR * 1.4826 * median(off), _LEAST * middle)
    return far
