"""Which lines of the program called some operations."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["called_at"]

_MOSTLY = 0.9  # of the calls
_MOST = 4  # lines


def called_at(run: Measures, operations: Int64, ranks: Collection[int]) -> tuple[str, ...]:
    """The lines that nine tenths of these operations' calls are at, the most frequent first.

    Of ``ranks`` only if there are any. No more than four; none where that is not enough, or where
    the recorder noted no lines.
    """
    its = run.rows("collectives")
    lines = its.coded("called_at")
    if not lines.names:
        return ()
    asked = np.isin(matched(run).waits.ints("operation"), operations)
    if len(ranks):
        asked &= np.isin(its.ints("rank"), list(ranks))
    codes = lines.codes[asked]
    count = np.bincount(codes[codes >= 0], minlength=len(lines.names))
    most = np.argsort(-count, kind="stable")[:_MOST]
    needed = int(np.searchsorted(np.cumsum(count[most]), _MOSTLY * codes.size)) + 1
    if needed > most.size or not codes.size:
        return ()
    return tuple(lines.names[code] for code in most[:needed].tolist())
