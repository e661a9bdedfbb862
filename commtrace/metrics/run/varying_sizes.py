"""Sizes that differ from step to step, as of tokens that are routed, are one kind."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import NULL, Int64, codes, first_rows
from commtrace.quantiles import quantiles

__all__ = ["typical_sizes"]

_OF_STEPS = 0.5  # in which a size occurs that is no chance
_FEW = 3  # sizes that vary: fewer are named each


def typical_sizes(kind: Int64, size_bytes: Int64, step: Int64) -> Int64:
    """Each row's size; the median of those of its kind that vary from step to step.

    A size varies if it occurs in less than half of the steps that its kind is in, and of those that
    such sizes are in: buckets occur in all steps, and parameters that are averaged now and then in
    the same ones.

    >>> steps = np.repeat([1, 2, 3, 4], 2)
    >>> sizes = np.array([100, 7, 100, 9, 100, 8, 100, 6])
    >>> typical_sizes(np.zeros(8, np.int64), sizes, steps).tolist()
    [100, 8, 100, 8, 100, 8, 100, 8]
    """
    sized = codes(kind, size_bytes)
    often = _steps(sized, step)
    varies = (often < _OF_STEPS * _steps(kind, step)) & (size_bytes != NULL)
    beside = np.zeros_like(often)
    beside[varies] = _steps(kind[varies], step[varies])
    varies &= often < _OF_STEPS * beside
    first = first_rows(sized)
    several = np.bincount(kind[first][varies[first]], minlength=int(kind.max(initial=-1)) + 1)
    varies &= several[kind] >= _FEW
    typical = quantiles(kind[varies], size_bytes[varies], 50, several.size)
    typical = np.where(np.isnan(typical), NULL, np.rint(typical)).astype(np.int64)
    return np.where(varies, typical[kind], size_bytes)


def _steps(number: Int64, step: Int64) -> Int64:
    """In how many steps each row's number occurs."""
    once = first_rows(codes(number, step))
    return np.bincount(number[once])[number]
