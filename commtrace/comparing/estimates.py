"""How far a change may be off: intervals for the difference of two sides' means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from commtrace.arrays import Float64
from commtrace.causal.chance import student
from commtrace.comparing.counted import regular_peaks

__all__ = ["Estimate", "Noise", "difference"]

_CHANCE = 0.05
_PAIRS = 3  # recordings in turn: of fewer too little is known of how pairs differ


@dataclass(frozen=True)
class Estimate:
    """A change in the mean, and what it is at least and at most, but for a chance of 5 %."""

    change: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """The estimate of so many times it."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.change, low, high)


@dataclass(frozen=True)
class Noise:
    """What single recordings of both sides differ by though nothing was changed, in ns.

    ``deviation`` is the standard deviation of that, known to ``df``. ``longer_base`` and
    ``longer_candidate`` is how much longer the sides may be because other processes took cores.
    """

    deviation: float
    df: int
    longer_base: float = 0.0
    longer_candidate: float = 0.0


def difference(
    base: Sequence[Float64],
    candidate: Sequence[Float64],
    noise: Noise,
    tests: int = 1,
    *,
    in_turn: bool = False,
) -> Estimate:
    """What the candidate has more than the base, its interval corrected for so many tests.

    Each side is the steps of its recordings. Of several on both sides these are the sample, and
    show how they differ: by pairs if they are many that were recorded ``in_turn``. Of one on a
    side the steps are the sample, and ``noise`` is added.
    """
    means = [np.array([steps.mean() for steps in side]) for side in (base, candidate)]
    change = float(means[1].mean() - means[0].mean())
    several = min(len(base), len(candidate)) > 1
    if several:
        parts = [_of_pairs(means) if in_turn and len(base) >= _PAIRS else _of_recordings(means)]
    else:
        parts = [_of_steps(steps, len(side)) for side in (base, candidate) for steps in side]
        parts.append((noise.deviation**2, noise.df))
    variance = sum(part for part, _ in parts)
    if not variance:
        return Estimate(change, change, change)
    df = variance**2 / sum(part**2 / df for part, df in parts)  # Welch and Satterthwaite
    off = student(_CHANCE / 2 / tests, max(int(df), 1)) * sqrt(variance)
    low, high = change - off, change + off
    if not several:
        low, high = low - noise.longer_candidate, high + noise.longer_base
    return Estimate(change, max(low, -float(means[0].mean())), high)  # no time is negative


def _of_steps(steps: Float64, recordings: int) -> tuple[float, int]:
    """What a recording's steps add to the variance of its side's mean.

    Of peaks in every so many steps those count apart: how many there are is known but for where
    the recording began.
    """
    if steps.size < 2:
        return 0.0, 1
    peaks = regular_peaks(steps)
    parts = [steps[peaks], steps[~peaks]] if peaks.any() else [steps]
    squares = sum(float(((its - its.mean()) ** 2).sum()) for its in parts)
    df = max(steps.size - len(parts), 1)
    variance = squares / df / steps.size
    if peaks.any():
        variance += ((parts[0].mean() - parts[1].mean()) / steps.size) ** 2 / 12
    return float(variance) / recordings**2, df


def _of_recordings(means: Sequence[Float64]) -> tuple[float, int]:
    df = sum(its.size - 1 for its in means)
    pooled = sum(float(((its - its.mean()) ** 2).sum()) for its in means) / df
    return pooled * sum(1 / its.size for its in means), df


def _of_pairs(means: Sequence[Float64]) -> tuple[float, int]:
    more = means[1] - means[0]
    return float(more.var(ddof=1)) / more.size, more.size - 1
