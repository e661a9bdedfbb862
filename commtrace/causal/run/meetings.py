"""Where all are there whom a call needs, and how long the transfer then takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int32, Int64, most, ranges, sorted_by
from commtrace.causal.run.builder import MEET, Builder
from commtrace.causal.run.calls import Calls, kernels_of, shares_kernel
from commtrace.causal.run.roots import kept_by_all
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["meetings", "transfers_ns"]


def meetings(made: Builder, mine: Calls) -> Int32:
    """The node where all are there whom a call needs: of most operations one for all ranks."""
    order = sorted_by(mine.operation)
    number = mine.operation[order]
    begins = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))[: order.size]
    sizes = np.diff(np.append(begins, number.size))
    of = np.empty(order.size, dtype=np.int64)
    of[order] = np.repeat(np.arange(sizes.size), sizes)
    several = mine.from_root | mine.to_root | mine.is_p2p
    met = np.empty(order.size, dtype=np.int32)
    joint = np.flatnonzero(np.bincount(of[~several], minlength=sizes.size))
    latest = most(of, mine.last_ns, sizes.size)
    node = np.zeros(sizes.size, dtype=np.int64)
    node[joint] = made.nodes(latest[joint], np.full(joint.size, -1))
    met[~several] = node[of[~several]]
    made.edges(MEET, made.started[~several], met[~several], 0)
    each = np.flatnonzero(several)
    met[each] = made.nodes(mine.last_ns[each], mine.rank[each])
    each, beside = _of_kernels(mine, each)
    source, target = _pairs(order, begins[of[beside]], sizes[of[beside]], each)
    own = source == target
    from_root = mine.is_root[source] | kept_by_all(mine)[target] | ~mine.from_root[target]
    to_root = mine.is_root[target] | ~mine.to_root[target]
    to_root |= mine.is_root[source] & mine.on_cpu[target]
    needs = own | (from_root & to_root & (mine.start_ns[source] <= mine.last_ns[target]))
    source, target = source[needs], target[needs]
    made.edges(MEET, made.started[source], met[target], 0)
    return met


def _pairs(order: Int64, begin: Int64, size: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Every call of an operation for each of some calls, and these: ``order`` is by operation."""
    return order[ranges(begin, size)], np.repeat(rows, size)


def _of_kernels(mine: Calls, rows: Int64) -> tuple[Int64, Int64]:
    """Some calls, each with every one of them that is of its kernel, itself included."""
    kernel = kernels_of(mine)[rows]
    order = sorted_by(kernel)
    begin, end = (np.searchsorted(kernel[order], kernel, side=side) for side in ("left", "right"))
    return np.repeat(rows, end - begin), rows[order][ranges(begin, end - begin)]


def transfers_ns(run: Measures, mine: Calls) -> Int64:
    """What each transfer takes at least: as measured, but of messages of one kernel each its own.

    What that kernel took is only its slowest message's.
    """
    least = np.full(mine.rank.size, np.iinfo(np.int64).max)
    several = np.flatnonzero(shares_kernel(mine))
    own = matched(run).operations.ints("transfer_ns")[mine.operation[several]]
    least[several] = np.where(own == NULL, least[several], own)
    return least
