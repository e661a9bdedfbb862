"""Which host threads launched the communication of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, numbered
from commtrace.measures import rank_measure
from commtrace.metrics.rank.rows_of import rows_of_ranks
from commtrace.packed import pack
from commtrace.table import Columns, joined

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["rank_threads"]


@rank_measure
def rank_threads(run: Measures, *ranks: int) -> Columns:
    """Of each of some ranks' rows of ``collectives`` the ``thread`` that launched its kernel.

    That is the one on its device and stream that starts with it; NULL where there is none.
    """
    kernels, called = (rows_of_ranks(run, table, ranks) for table in ("kernels", "collectives"))
    rows = np.flatnonzero(kernels.coded("kind").being("communication"))
    devices = kernels.coded("device").take(rows), called.coded("device")
    device = joined(devices).codes.astype(np.int64)
    where = ("rank", "stream", "start_ns")
    place = numbered(
        device, *(np.append(kernels.ints(its)[rows], called.ints(its)) for its in where)
    )
    thread = np.full(int(place.max(initial=-1)) + 1, NULL)
    thread[place[: rows.size][::-1]] = kernels.ints("thread")[rows][::-1]  # of several the first
    return pack({"thread": thread[place[rows.size :]]})
