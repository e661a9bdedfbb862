"""The number by which a trace ties a call of the host to what it caused."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import NULL, Int64

__all__ = ["rows_with", "values_at"]


def rows_with(wanted: Int64, correlation: Int64, start_ns: Int64) -> Int64:
    """The row that has each wanted correlation, of several the first to start; -1 for none."""
    if not correlation.size:
        return np.full(wanted.shape, -1)
    order = np.lexsort((start_ns, correlation))
    keys = correlation[order]
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where((wanted > 0) & (keys[at] == wanted), order[at], -1)


def values_at(values: Int64, rows: Int64) -> Int64:
    """``values[rows]``, NULL for row -1."""
    return np.append(values, NULL)[rows]
