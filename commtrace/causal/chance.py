"""How likely a mean above zero is by chance, and how far it may be off."""

from __future__ import annotations

from math import atan, cos, pi, sin, sqrt

from commtrace.arrays import Float64

__all__ = ["above_zero", "student"]


def above_zero(values: Float64) -> float:
    """The one-sided p of a t test of the mean; 1 for fewer than two values.

    >>> import numpy as np
    >>> round(above_zero(np.array([1.0, 2.0, 3.0])), 4)
    0.0371
    """
    n = values.size
    if n < 2:
        return 1.0
    mean, scatter = float(values.mean()), float(values.std(ddof=1))
    if scatter == 0:
        return 0.0 if mean > 0 else 1.0
    return _upper_tail(mean / (scatter / sqrt(n)), n - 1)


def student(tail: float, df: int) -> float:
    """What Student's t exceeds with that chance, at most a half.

    >>> round(student(0.025, 7), 3), round(student(0.025, 1), 3)
    (2.365, 12.706)
    """
    low, high = 0.0, 2.0
    while _upper_tail(high, df) > tail:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _upper_tail(middle, df) > tail else (low, middle)
    return high


def _upper_tail(t: float, df: int) -> float:
    """Student's t for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    theta = atan(t / sqrt(df))
    square = cos(theta) ** 2
    if df % 2:
        term = cos(theta)
        total = term if df > 1 else 0.0
        for k in range(3, df - 1, 2):
            term *= square * (k - 1) / k
            total += term
        inner = 2 / pi * (theta + sin(theta) * total)
    else:
        term = total = 1.0
        for k in range(2, df - 1, 2):
            term *= square * (k - 1) / k
            total += term
        inner = sin(theta) * total
    return min(max((1 - inner) / 2, 0.0), 1.0)
