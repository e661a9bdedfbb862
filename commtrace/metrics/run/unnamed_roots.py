"""Roots of operations whose calls name none, as who waits for whom tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, least, most

if TYPE_CHECKING:
    from commtrace.metrics.run.arrivals import Arrivals

__all__ = ["unnamed_roots"]

_SEVERAL = 3  # operations


def unnamed_roots(its: Arrivals, kind: Int64) -> Int64:
    """The root of each operation: as named, else as waiting tells it; NULL where nothing does.

    Where waiting tells the same one of several operations of a ``kind``, it is that of the others
    of this kind, too.
    """
    root: Int64 = its.root.copy()
    open_ = its.rooted & (root == NULL) & its.comparable & its.complete & (its.size > 1)
    if not open_.any():
        return root
    rows = _told_by_waiting(its, open_)
    of = its.of[rows]
    root[of] = its.rank[rows]
    count = int(kind.max()) + 1
    first, last = least(kind[of], root[of], count), most(kind[of], root[of], count)
    one = (first == last) & (np.bincount(kind[of], minlength=count) >= _SEVERAL)
    rest = open_ & (root == NULL) & one[kind]
    root[rest] = first[kind[rest]]
    return root


def _told_by_waiting(its: Arrivals, open_: Bool) -> Int64:
    """The rows of these operations' roots, of those that somebody is held in.

    A broadcast waits for its root alone: it is the last, if all others were held until it came,
    for longer than all took then. What is reduced or gathered holds its root alone.
    """
    rows = np.flatnonzero(open_[its.of])
    of = its.of[rows]
    took = np.maximum(its.gate, its.max(its.end) - its.tau)[of]
    held = (its.end[rows] >= its.tau[of]) & (its.tau[of] - its.arrival[rows] > took)
    count = np.bincount(of[held], minlength=its.size.size)
    is_last = rows == its.starts[of] + its.size[of] - 1
    sends = its.from_root[of] & is_last & (count == its.size - 1)[of]
    collects = its.to_root[of] & held & (count == 1)[of]
    found: Int64 = rows[sends | collects]
    return found
