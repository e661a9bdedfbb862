"""The difference of two clocks: a line through the differences of what both saw."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import Int64
from commtrace.quantiles import median

__all__ = ["DRIFT", "LINE_OPERATIONS", "LINE_SPAN_NS", "SAME", "Line", "fit", "level"]

CLOSE_NS = 10_000  # ends of one collective on two ranks: about the same moment
Float = npt.NDArray[np.float64]

LINE_OPERATIONS = 40  # fewer show no drift
LINE_SPAN_NS = 1_000_000_000  # a drift needs a second to show
DRIFT = 50e-6  # what computers' clocks drift at most against each other, where it cannot be fitted


class Line(Struct, frozen=True):
    """What one clock is ahead of another: ``level_ns`` at ``at_ns``, growing by ``slope``."""

    level_ns: float
    slope: float = 0.0
    at_ns: int = 0

    def __call__(self, times: Int64) -> Int64:
        """What to subtract from times of the first clock to reach the other."""
        whole = int(self.level_ns)  # a float cannot hold the nanoseconds of Unix time
        rest = (times - self.at_ns) * self.slope + (self.level_ns - whole)
        offset: Int64 = whole + np.rint(rest).astype(np.int64)
        return offset

    def at(self, at_ns: int) -> Line:
        """The same line, stated elsewhere."""
        return Line(self.level_ns + self.slope * (at_ns - self.at_ns), self.slope, at_ns)

    def plus(self, second: Line) -> Line:
        """What the first clock is ahead of a third, if ``second`` is what the second one is."""
        # The second clock shows another time then; hours, perhaps.
        second = second.at(self.at_ns - int(self.level_ns))
        return Line(self.level_ns + second.level_ns, self.slope + second.slope, self.at_ns)

    def less(self, third: Line) -> Line:
        """What the first clock is ahead of the third, if both lines are against the second."""
        third = third.at(self.at_ns - int(self.level_ns - third.level_ns))
        return Line(self.level_ns - third.level_ns, self.slope - third.slope, self.at_ns)


SAME = Line(0.0)


def level(times: Int64, offsets: Int64) -> Line:
    """The median of the ``offsets`` of clocks at some times; at least one."""
    return _through(times, offsets, slope=False)


def fit(times: Int64, offsets: Int64) -> Line:
    """The line through the offsets: Theil-Sen; the median of fewer than 40."""
    return _through(times, offsets, slope=times.size >= LINE_OPERATIONS)


def _through(times: Int64, offsets: Int64, *, slope: bool) -> Line:
    at, base = int(median(times)), int(median(offsets))
    when, rest = (times - at).astype(np.float64), (offsets - base).astype(np.float64)
    steepness = _slope(when, rest) if slope else 0.0
    return Line(base + median(rest - steepness * when), steepness, at)


def _slope(x: Float, y: Float) -> float:
    """The median slope of pairs half the sequence apart (Theil's incomplete method)."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    half = x.size // 2
    run, rise = x[half : 2 * half] - x[:half], y[half : 2 * half] - y[:half]
    real = run > 0
    return median(rise[real] / run[real]) if real.any() else 0.0
