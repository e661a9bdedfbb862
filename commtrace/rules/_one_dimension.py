"""What is exposed by the dimensions of the job's mesh: one's operations are not another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, sums
from commtrace.metrics.rank.exposed_calls import exposed_ns
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["of_one_dimension", "of_same_groups"]


def of_one_dimension(run: Measures, rows: Int64) -> Int64:
    """Those of the rows that are of the dimension of the job's mesh that is exposed for longest.

    All of them where there is one only. Tensor parallelism's sums are no gradients'.
    """
    exposed = exposed_ns(run, rows)
    dimension = dimensions_of(run, matched(run).matches.coded("communicator").take(rows))
    if not dimension.known.all() or len(dimension.occurring()) < 2 or not exposed.any():
        return rows
    each = sums(dimension.codes.astype(np.int64), exposed, len(dimension.names))
    most: Int64 = rows[dimension.codes == int(each.argmax())]
    return most


def of_same_groups(run: Measures, rows: Int64) -> Bool:
    """Which rows of ``collectives`` are of the same groups as some of these; all if unknown."""
    groups = matched(run).matches.coded("communicator").codes
    theirs = groups[rows]
    known = theirs[theirs >= 0]
    same: Bool = np.isin(groups, known) if known.size else np.ones(groups.size, np.bool_)
    return same
