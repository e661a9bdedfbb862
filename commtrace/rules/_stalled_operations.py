"""Single operations of GPUs that take many times as long as others alike, for all who are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, codes, grouped, most
from commtrace.metrics.run.bandwidth import on_gpus
from commtrace.quantiles import quantiles
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Stalled", "stalled"]

_TIMES = 10  # as long as usual: no size or neighbour varies so
_APART = 4  # times the longest of the others, and further than that is from the usual, twice
_LARGER = 2.0  # times the usual bytes: such takes longer by itself
_FEW = 0.05  # of those alike, or one


class Stalled(Struct, frozen=True, eq=False):
    """The ``operations``, all of one kind, and what each takes beyond the usual.

    So many ``others`` of that kind do not.
    """

    operations: Rows
    beyond_ns: Float64
    usual_ns: float
    others: int


def stalled(run: Measures, known: Rows, min_count: int) -> list[Stalled]:
    """Of each group's operations of one kind those that stall, if these are few of so many.

    ``known`` are SERVED: waiting for late ranks is no part of their transfers. Those of CPUs wait
    for cores as well.
    """
    its = known.take(on_gpus(known, run) & (known.ints("present") == known.ints("expected")))
    if not len(its):
        return []
    kind = codes(*(its.columns[name] for name in ("communicator", "op", "dtype")))
    count = np.bincount(kind)
    transfer, size = its.ints("transfer_ns"), its.ints("size_bytes")
    usual, bytes_ = (quantiles(kind, values, 50, count.size)[kind] for values in (transfer, size))
    stalls = (transfer > _TIMES * usual) & (size <= _LARGER * bytes_) & (count[kind] >= min_count)
    many = np.bincount(kind, stalls)
    stalls &= (many <= np.maximum(_FEW * count, 1))[kind]
    longest = most(kind[~stalls], transfer[~stalls], count.size)[kind]
    stalls &= transfer > longest * np.maximum(_APART, (longest / usual) ** 2)
    at = np.flatnonzero(stalls)
    each = (at[rows] for rows in grouped(kind[at]))
    return [
        Stalled(
            its.take(rows),
            transfer[rows] - usual[rows],
            float(usual[rows[0]]),
            int(count[kind[rows[0]]] - rows.size),
        )
        for rows in each
    ]
