"""Gathers of parameters that are trained no more, as of a model whose adapters alone are."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import NULL, Bool, codes, first_rows, least
from commtrace.metrics.run.elements import elements
from commtrace.table import Rows

__all__ = ["gathers_of_frozen"]

_MANY = 8  # gathers in a step: layers of a model
_NEARLY_HALF = 0.25  # of the gathers: what is left of forward need not come again
_HARDLY = 0.1  # of the parameters: what adapters have, and more
_REDUCES = ("all_reduce", "reduce_scatter")


def gathers_of_frozen(rows: Rows) -> Bool:
    """Which rows of ``sequences`` gather, in a step, parameters of which hardly any has a gradient.

    In forward and, from autograd's own thread, in backward, many times each; of all that is
    gathered so a rank reduces less than a tenth in any step. Only backward on GPUs has a thread.
    """
    gathers = rows.coded("op").being("all_gather")
    step, thread = rows.ints("step"), rows.ints("thread")
    mine = np.flatnonzero(gathers & (step != NULL) & (thread != NULL))
    found = np.zeros(len(rows), dtype=np.bool_)
    if not mine.size:
        return found
    its = rows.take(mine)
    one = codes(its.ints("sequence"), its.ints("step"))
    by_thread = codes(one, its.ints("thread"))
    of, every = one[first_rows(by_thread)], np.bincount(one)
    fewer = least(of, np.bincount(by_thread), every.size)
    twice = (np.bincount(of) == 2) & (2 * fewer >= _MANY) & (fewer >= _NEARLY_HALF * every)
    rank = codes(rows.ints("rank"), step)
    reduced = np.bincount(rank, elements(rows) * rows.coded("op").where(_REDUCES.__contains__))
    gathered = np.bincount(one, elements(its)) / 2
    found[mine] = twice[one] & (reduced[rank[mine]] < _HARDLY * gathered[one])
    return found
