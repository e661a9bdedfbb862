"""Sizes that tell which call of a rank is which of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows, least, most
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["largest_bytes", "telling_bytes"]


def telling_bytes(run: Measures, kind: Int64) -> Int64:
    """The largest size of the operation of each row of ``collectives``; 0 where it tells nothing.

    Replicas whose texts are of unlike lengths call alike, in unlike sizes: those that not all have
    of a ``kind`` that each rank calls as often in a step.
    """
    table, size = run.rows("collectives"), largest_bytes(run)
    rank, step, sized = table.ints("rank"), table.ints("step"), codes(kind, size)
    of_all, alike = (_of_all(codes(its, step), rank) | (step == NULL) for its in (kind, sized))
    return np.where(~np.isin(kind, kind[~of_all]) & np.isin(sized, sized[~alike]), 0, size)


def largest_bytes(run: Measures) -> Int64:
    """The largest size of the operation of each row of ``collectives``.

    Ranks may send and get unlike parts.
    """
    operation = codes(matched(run).waits.ints("operation"))
    size = run.rows("collectives").ints("size_bytes")
    return most(operation, size, int(operation.max(initial=-1)) + 1)[operation]


def _of_all(what: Int64, rank: Int64) -> Bool:
    """Of each row whether every rank has as many rows of what it is of, a number from 0."""
    cell = codes(what, rank)
    first, count = first_rows(cell), np.bincount(cell)
    ranks = np.bincount(what[first])
    low, high = (extreme(what[first], count, ranks.size) for extreme in (least, most))
    return np.asarray(((ranks == distinct(rank).size) & (low == high))[what])
