"""Operations whose transfer had begun before all were there: their bandwidth is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, least, most
from commtrace.comms import TO_ROOT
from commtrace.measures import measure
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["moved_before"]

_APART = 0.1  # of what remains: a part this small may have moved before


@measure
def moved_before(run: Measures) -> Bool:
    """Of which operations to a root a part has moved before the last of them came.

    From when the root is there and another, for long compared with what remains then. Rows are
    those of ``matched(run).operations``.
    """
    table, waits = matched(run).operations, matched(run).waits
    of = np.searchsorted(table.ints("operation"), waits.ints("operation"))
    arrival_ns = waits.ints("arrival_ns")
    is_root = waits.ints("rank") == table.ints("root")[of]
    root_ns = most(of[is_root], arrival_ns[is_root], len(table))
    first_ns = np.maximum(least(of[~is_root], arrival_ns[~is_root], len(table)), root_ns)
    before_ns = table.ints("last_arrival_ns") - first_ns
    apart: Bool = (root_ns != NULL) & (before_ns > _APART * table.ints("transfer_ns"))
    return apart & table.coded("op").where(TO_ROOT.__contains__)
