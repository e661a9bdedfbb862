"""The operators of threads that call operations: what a rank does behind each of its calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, distinct
from commtrace.metrics.rank.rows_of import rows_of_rank

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["CallingThread", "calling_threads"]


class CallingThread(NamedTuple):
    """A thread: which of the calls are its own, what it computes, and when it calls, all in order.

    ``calls`` flags those that were asked about, ``launch_ns`` are of all that it makes.
    """

    calls: Bool
    ops: Rows
    launch_ns: Int64

    def next_launch_ns(self, since_ns: Int64) -> Int64:
        """When it calls next behind these times; never, if it does not."""
        never = np.iinfo(np.int64).max
        at = np.searchsorted(self.launch_ns, since_ns, side="right")
        following: Int64 = np.append(self.launch_ns, never)[at]
        return following


def calling_threads(run: Measures, rank: int, calls: Rows) -> Iterator[CallingThread]:
    """The threads of some calls of a rank, rows of ``collectives``, as far as they are known."""
    ops, every = rows_of_rank(run, "ops", rank), rows_of_rank(run, "collectives", rank)
    ops = ops.take(ops.coded("kind").being("compute"))
    thread = calls.ints("thread")
    for one in distinct(thread[thread != NULL]).tolist():
        own = ops.take(ops.ints("thread") == one)
        own = own.take(np.argsort(own.ints("start_ns"), kind="stable"))
        launches = np.sort(every.ints("launch_ns")[every.ints("thread") == one])
        yield CallingThread(thread == one, own, launches)
