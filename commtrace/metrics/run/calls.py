"""Operations from their call on: what a call does before its operation starts counts, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64, most
from commtrace.measures import measure
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.table import Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["CALLS", "blocked_ns", "called"]

CALLS = Table(
    "calls",
    "one operation of the run, as if it began with its last call: `last_arrival_ns` is that "
    "call, and `transfer_ns` is longer by what it is earlier",
    OPERATIONS.columns,
)


def blocked_ns(rows: Rows) -> Int64:
    """How long before its start each row of ``collectives`` blocked its caller.

    Known of synchronous calls on the CPU, where gloo copies the input first; else 0.
    """
    launch_ns = rows.ints("launch_ns")
    blocks = rows.coded("device").being("cpu") & (rows.ints("asynchronous") == 0)
    blocks &= launch_ns != NULL
    return np.where(blocks, rows.ints("start_ns") - launch_ns, 0).clip(min=0)


@measure
def called(run: Measures) -> Rows:
    """The operations of the run, as if they began with their last call: CALLS."""
    its, arrival = matched(run).operations, matched(run).waits.ints("arrival_ns")
    timed, last = arrival != NULL, its.ints("last_arrival_ns")
    call = arrival - blocked_ns(run.rows("collectives"))
    last_call = most(operation_of(run)[timed], call[timed], len(its))
    earlier = np.where(last == NULL, 0, last - last_call).clip(min=0)
    later = {"last_arrival_ns": last - earlier, "transfer_ns": its.ints("transfer_ns") + earlier}
    return its.having(CALLS, later)
