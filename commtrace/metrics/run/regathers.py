"""Gathers of parameters that FSDP makes again and again, or that a program makes beside FSDP's."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import NULL, Bool, codes, distinct, most, nth
from commtrace.metrics.run.elements import elements
from commtrace.table import Rows

__all__ = ["IN_BACKWARD", "gathered_whole", "regathered"]

IN_BACKWARD = 1.5
"""Gathers for each reduction, if parameters are gathered again for backward, but for the last."""
_AGAIN = 3
_HALF = 0.5  # of the gradients: some programs look at the layers' alone
_ALWAYS = 0.9  # of the steps: the window may cut one


def regathered(rows: Rows, often: float = _AGAIN) -> Bool:
    """Which rows of ``sequences`` gather once more what FSDP's reductions tell are parameters.

    In a step as many elements as are reduce_scattered, so ``often`` or more: by default parameters
    that several micro-batches, or the tokens of a generation, use before they are updated. All but
    the first of each in (nearly) all steps of its rank and group. What is gathered behind a step's
    last reduction has been updated, and counts as the next step's.
    """
    gathers, reductions = (rows.coded("op").being(op) for op in ("all_gather", "reduce_scatter"))
    step, known = rows.ints("step"), rows.coded("dtype").known
    mine = np.flatnonzero((gathers | reductions) & known & (step != NULL))
    found = np.zeros(len(rows), dtype=np.bool_)
    if not gathers[mine].any() or not reductions[mine].any():
        return found
    which = np.searchsorted(distinct(step[mine]), step[mine])  # of those recorded: some may lack
    until = which + _behind_the_last(rows.take(mine), reductions[mine])
    # What the last update is gathered for is not recorded, nor may be what the first one was.
    kept = (until <= which.max()) & ((until > 0) | gathers[mine][until == 0].any())
    mine, until = mine[kept], until[kept]
    its, gathers = rows.take(mine), gathers[mine]
    whose = codes(its.ints("sequence"), elements(its))
    one = codes(whose, until)
    reduced, gathered = (np.bincount(one, part, one.max() + 1) for part in (~gathers, gathers))
    many = (reduced > 0) & (gathered >= often * reduced)
    of = np.zeros(many.size, np.int64)
    of[one] = whose
    always = (np.bincount(of, many) / np.bincount(of)) >= _ALWAYS
    again = nth(codes(one, gathers)) >= reduced[one]
    found[mine] = gathers & again & always[whose] & many[one]
    return found


def _behind_the_last(rows: Rows, reduces: Bool) -> Bool:
    """Which rows come behind the last reduction of their sequence in their step, if it has any."""
    step, place = codes(rows.ints("sequence"), rows.ints("step")), np.arange(len(rows))
    last = most(step[reduces], place[reduces], int(step.max()) + 1)[step]
    return np.asarray((last != NULL) & (place > last))


def gathered_whole(rows: Rows) -> Bool:
    """Which rows of ``sequences`` gather tensors one by one, in all what FSDP reduces in a step.

    As ``full_tensor()`` of each parameter or gradient does: of sizes that no reduction of the group
    has, in a step in which they hold as many elements as its gradients, or half as many in the type
    of the reductions, which units are not gathered in; and so do the gathers of units that are
    reduced. Without these the others are what sharding needs.
    """
    gathers, reductions = (rows.coded("op").being(op) for op in ("all_gather", "reduce_scatter"))
    found = np.zeros(len(rows), dtype=np.bool_)
    mine = np.flatnonzero((gathers | reductions) & (rows.ints("step") != NULL))
    mine = mine[rows.coded("dtype").known[mine]]
    if not gathers[mine].any() or not reductions[mine].any():
        return found
    its, reduces, many = rows.take(mine), reductions[mine], elements(rows.take(mine))
    unit = codes(its.ints("sequence"), many)
    of_units = (np.bincount(unit, reduces) > 0)[unit]
    step = codes(its.ints("sequence"), its.ints("step"))
    in_step = codes(step, unit)
    times = np.bincount(in_step, reduces)[in_step]  # each micro-batch reduces
    once = np.full(int(step.max()) + 1, np.inf)
    np.minimum.at(once, step[reduces], times[reduces])
    parameters = np.bincount(step, many * reduces) / once
    gathered, dtype = of_units & ~reduces, its.coded("dtype").codes
    known = (parameters > 0) & (np.bincount(step, many * gathered) >= _ALWAYS * parameters)
    as_reduced = np.isin(dtype, dtype[reduces]) & ~np.isin(dtype, dtype[gathered])
    for which, share in ((~of_units, _ALWAYS), (~of_units & as_reduced, _HALF)):
        every = known & (np.bincount(step, many * which) >= share * parameters)
        found[mine] |= which & every[step]
    return found
