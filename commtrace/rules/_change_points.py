"""Where a series of transfers steps up, and what was typical before."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Float64, codes
from commtrace.metrics.run.bandwidth import KIND
from commtrace.quantiles import quantiles
from commtrace.table import Rows

__all__ = ["change", "typical_before"]


def typical_before(some: Rows, at: int) -> Float64:
    """Each operation's kind's median transfer among the first so many; NaN without any."""
    kind = codes(*(some.columns[name] for name in KIND))
    before = quantiles(kind[:at], some.ints("transfer_ns")[:at], 50, int(kind.max()) + 1)
    typical: Float64 = before[kind]
    return typical


def change(series: Float64, few: int) -> tuple[int, float]:
    """Where a series steps up most clearly, with a few on either side; its chance by noise.

    Pettitt's test: the largest of 2 (sum of the first k ranks) - k (n + 1) over k. Its place
    leans to the middle; where two levels fit the logarithms best does not.
    """
    n = series.size
    first = np.arange(1, n)
    below = first * np.log(series).mean() - np.cumsum(np.log(series))[:-1]
    clear = below.clip(min=0) ** 2 / (first * (n - first))
    at = few - 1 + int(np.argmax(clear[few - 1 : n - few]))
    _, place, count = np.unique(series, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    rise = max(float((first * (n + 1) - 2 * np.cumsum(ranks)[:-1]).max()), 0.0)
    return at + 1, float(min(1.0, 2 * np.exp(-6 * rise**2 / (n**3 + n**2))))
