"""How likely it is by chance: a mean above zero, so many successes; how far a mean is off."""

from __future__ import annotations

from math import atan, cos, exp, lgamma, log, pi, sin, sqrt

from commtrace.arrays import Float64

__all__ = ["above_zero", "at_least", "student"]


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


def at_least(successes: int, of: int, probability: float) -> float:
    """The chance of that many successes or more: the upper tail of the binomial.

    >>> round(at_least(8, 12, 0.25), 4)
    0.0028
    """
    if successes <= 0:
        return 1.0
    if successes > of:
        return 0.0
    if probability >= 1:
        return 1.0
    log_term = lgamma(of + 1) - lgamma(successes + 1) - lgamma(of - successes + 1)
    log_term += successes * log(probability) + (of - successes) * log(1 - probability)
    term = exp(log_term)
    tail = term
    for done in range(successes, of):
        term *= (of - done) / (done + 1) * probability / (1 - probability)
        tail += term
        if term < 1e-12 * tail and done > of * probability:
            break
    return min(tail, 1.0)
