"""What GPUs still run when a trace begins, as hosts run ahead of them."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Bool, Int64, least

__all__ = ["launched_before"]

_QUEUE = 2048
"""Kernels of a stream: it holds about a thousand launches, some of which are of CUDA graphs."""


def launched_before(stream: Int64, start_ns: Int64, known: Bool) -> Bool:
    """Which work was launched before the trace began; streams are numbers from 0.

    What a stream runs before the first whose launch is ``known``, and no more than a queue holds:
    of streams without any such, or with more, launches are lost.
    """
    count = int(stream.max(initial=-1)) + 1
    first = least(stream[known], start_ns[known], count)
    before = (start_ns < first[stream]) & np.isin(stream, stream[known])
    many = np.bincount(stream[before], minlength=count) > _QUEUE
    return np.asarray(before & ~many[stream])
