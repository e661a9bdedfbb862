"""Which operations are called in a pass of the training, as far as that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.arrays import Int64
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["in_backward"]


def in_backward(run: Measures) -> Int64:
    """The numbers of the operations that some rank calls in a backward pass."""
    found: Int64 = matched(run).matches.ints("operation")[phases(run).being("backward")]
    return found
