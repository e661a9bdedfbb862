"""What ranks without a trace file leave open: whether others wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["missing_ranks", "mostly_with_missing"]


def missing_ranks(run: Measures) -> list[int]:
    """The ranks of the job without a trace file, as far as its size is known."""
    ranks = run.rows("ranks")
    world = int(ranks.ints("world_size").max(initial=0))
    return sorted({*range(world)} - {*ranks.ints("rank").tolist()})


def mostly_with_missing(run: Measures, operations: Int64) -> bool:
    """Whether most of these operations are of groups with such ranks, or may be."""
    if not missing_ranks(run):
        return False
    its = matched(run).operations
    mine = its.take(np.isin(its.ints("operation"), operations))
    expected = mine.ints("expected")
    lacking = (expected == NULL) | (mine.ints("present") < expected)
    return bool(2 * lacking.sum() >= len(mine))
