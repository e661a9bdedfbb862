"""When programs multiply matrices: what they communicate next may need the one before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64
from commtrace.comms import members
from commtrace.kernels import PRODUCT
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_rank
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["multiplied", "products_ns"]

_MULTIPLIES = re.compile(
    rf"{PRODUCT}|aten::(?:matmul|(?:add)?mv|tensordot|lstm|gru|rnn)"
    r"|Torch-Compiled Region"  # in which nobody sees what runs
)


@measure
def products_ns(run: Measures, rank: int) -> Int64:
    """When a rank's forward begins to multiply matrices, in order, on the run's clock.

    What backward does is within autograd's operators, and so not seen here.
    """
    if rank not in ranks_of(run, "ops"):
        return np.empty(0, np.int64)
    ops = rows_of_rank(run, "ops", rank)
    ops = ops.take(ops.coded("name").where(lambda name: bool(_MULTIPLIES.match(name))))
    return np.sort(on_run(run, rank, ops.ints("start_ns")))


def multiplied(run: Measures, its: Rows, first: Int64) -> Bool:
    """Whether, behind each of these rows of a group's operations, forward multiplies for the next.

    That is from the last arrival at one to that at the next, on any rank.
    """
    arrived_ns = its.ints("last_arrival_ns")
    found = np.zeros(first.size, np.bool_)
    for rank in members(its.coded("communicator").at(0)):
        before = np.searchsorted(products_ns(run, rank), arrived_ns)
        found |= before[first] < before[first + 1]
    return found
