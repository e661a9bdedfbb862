"""Medians and other quantiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commtrace.arrays import Float64, Int32, Int64

__all__ = ["median", "medians", "quantile", "quantiles"]


def median(values: npt.ArrayLike) -> float:
    """As ``np.median``, which imports masked arrays; NaN where any is, or there are none."""
    return float(medians(np.ravel(values), axis=0))


def medians(values: npt.ArrayLike, axis: int) -> Float64:
    """The median along an axis."""
    ordered = np.sort(np.asarray(values), axis=axis)
    count = ordered.shape[axis]
    if not count:
        return np.full(ordered.sum(axis=axis).shape, np.nan)
    middle: Float64 = ordered.take([(count - 1) // 2, count // 2], axis=axis).mean(axis=axis)
    # NaN is sorted behind all numbers.
    return np.where(np.isnan(ordered.take(-1, axis=axis)), np.nan, middle)


def quantile(values: npt.ArrayLike, share: float) -> float:
    """What so large a share of some values is below, between two in proportion.

    NaN where any is, or there are none.
    """
    ordered = np.sort(np.ravel(values)).astype(np.float64)
    if not ordered.size or np.isnan(ordered[-1]):
        return float("nan")
    at = share * (ordered.size - 1)
    low = int(at)
    first, last = ordered[low], ordered[min(low + 1, ordered.size - 1)]
    return float(first if first == last else first + (last - first) * (at - low))


def quantiles(
    number: Int32 | Int64, values: Int64 | Float64, percent: float, count: int
) -> Float64:
    """The quantile, between two values in proportion, of each of so many numbers; NaN of none."""
    ordered = values[np.lexsort((values, number))].astype(np.float64)
    size = np.bincount(number, minlength=count)
    at = percent / 100 * (size - 1)
    low = np.floor(at).clip(min=0).astype(np.int64)
    first = np.cumsum(size) - size + low
    last = np.where(low + 1 < size, first + 1, first)
    ordered = np.append(ordered, np.nan)
    first, last = (np.where(size > 0, place, -1) for place in (first, last))
    between: Float64 = ordered[first] + (ordered[last] - ordered[first]) * (at - low)
    return between
