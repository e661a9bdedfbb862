"""Process groups that are made anew again and again, each for one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, codes, distinct, first_rows, least, most

if TYPE_CHECKING:
    from commtrace.table import Rows

__all__ = ["firsts_of_new_groups"]

_STEPS = 4
_MOSTLY = 0.75  # of the steps


def firsts_of_new_groups(rows: Rows) -> Bool:
    """Which rows of ``sequences`` are a rank's first in a group that no other step uses.

    Where most steps have such a group. In a run without steps none: each is used once.
    """
    step, group = rows.ints("step"), codes(rows.coded("communicator"))
    found = np.zeros(step.size, np.bool_)
    known = np.flatnonzero(step != NULL)
    steps = distinct(step[known])
    if steps.size < _STEPS:
        return found
    count = int(group.max(initial=-1)) + 1
    first, last = (of(group[known], step[known], count) for of in (least, most))
    once = known[(first == last)[group[known]]]
    if distinct(step[once]).size >= _MOSTLY * steps.size:
        found[once[first_rows(codes(rows.ints("rank")[once], group[once]))]] = True
    return found
