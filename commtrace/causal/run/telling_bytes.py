"""Sizes that tell which call of a rank is which of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, codes, distinct, first_rows, least, most
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["telling_bytes"]


def telling_bytes(run: Measures, kind: Int64) -> Int64:
    """The largest size of the operation of each row of ``collectives``; 0 where it tells nothing.

    Replicas whose texts are of unlike lengths call alike, in unlike sizes: those of a ``kind`` that
    each rank calls as often in a step, though not all in the same sizes. Of stages, which send
    messages, sizes tell what is of which.
    """
    table, size = run.rows("collectives"), _largest_bytes(run)
    if table.coded("op").where(POINT_TO_POINT.__contains__).any():
        return size
    rank, in_step = table.ints("rank"), codes(kind, table.ints("step"))
    of_all, sized_alike = _of_all(in_step, rank), _of_all(codes(in_step, size), rank)
    kinds = int(kind.max(initial=-1)) + 1
    as_often, unlike = np.ones(kinds, dtype=np.bool_), np.zeros(kinds, dtype=np.bool_)
    as_often[kind[~of_all]] = False
    unlike[kind[~sized_alike]] = True
    return np.where((as_often & unlike)[kind], 0, size)


def _largest_bytes(run: Measures) -> Int64:
    """Of all ranks of the operation, which may send and get unlike parts."""
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
