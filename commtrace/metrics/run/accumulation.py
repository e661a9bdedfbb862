"""Reductions of gradients that nobody uses: what later micro-batches add to, or no update takes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows, grouped, most, sums
from commtrace.metrics.run.gradients import Placed
from commtrace.metrics.run.sequences import SEQUENCES
from commtrace.table import Column, Rows, Table

__all__ = ["REPEATED", "of_another_pass", "repeated_in_accumulation"]

_SMALL_BYTES = 65_536

REPEATED = Table(
    "repeated_in_accumulation",
    "one reduction of a micro-batch that the last of its accumulation makes needless",
    (
        *SEQUENCES.columns,
        Column("micro_batches", "int64", "Those of its accumulation that reduce."),
    ),
)


def repeated_in_accumulation(rows: Rows, its: Placed) -> Rows:
    """Of ``sequences`` the reductions that the last of their accumulation makes needless: REPEATED.

    ``its`` are those of gradients. One accumulation is the micro-batches of one step, and of one
    labelled range in it, with no optimizer's step between them. Needless is what a micro-batch
    reduces that is not the last, if the last reduces as many bytes, or, of unknown sizes, as often.
    """
    row, forward, within, updates = its.of(its.forward >= 0)
    if not row.size:
        return REPEATED.rows()
    whole = codes(*_step(rows, row), within, updates)
    latest = most(whole, forward, whole.max(initial=-1) + 1)
    last = forward == latest[whole]
    if last.all():
        return REPEATED.rows()
    batch = codes(whole, forward)
    size = rows.ints("size_bytes")[row]
    size = sums(batch, np.where(size == NULL, 1, size), int(batch.max()) + 1)[batch]
    of_last = most(whole[last], size[last], latest.size)
    needless = ~last & (size == of_last[whole])
    count = np.bincount(whole[first_rows(batch)])
    found = rows.take(row[needless])
    return REPEATED.rows({**found.columns, "micro_batches": count[whole[needless]]})


def of_another_pass(rows: Rows, its: Placed) -> Int64:
    """The reductions, rows of ``sequences``, of gradients that another pass is for.

    A pass is what one update of a step ends. One that reduces the very sizes of another pass, and
    more, updates what is more: the gradients that both reduce are the other's, which computes its
    own. A generator's pass through a discriminator whose parameters require gradients does so.
    Sums of statistics are no gradients.
    """
    # A step holds each model's pass once.
    its = its.of((rows.ints("step")[its.row] != NULL) & ~_of_statistics(rows)[its.row])
    row, updates, size = its.row, its.updates, rows.ints("size_bytes")[its.row]
    found = [row[:0]]
    for step in grouped(*_step(rows, row)):
        passes = {one: step[updates[step] == one] for one in distinct(updates[step]).tolist()}
        sizes = {one: Counter(size[some].tolist()) for one, some in passes.items()}
        for one, some in passes.items():
            own = [other for other in sizes.values() if other < sizes[one]]
            if own:
                smaller = max(own, key=Counter.total)
                found.append(row[some[np.isin(size[some], list(smaller))]])
    return np.concatenate(found)


def _of_statistics(rows: Rows) -> Bool:
    """Small all_reduces of groups that gather as often in the step, as SyncBatchNorm in forward."""
    op, size = rows.coded("op"), rows.ints("size_bytes")
    sums_up = op.being("all_reduce") & (size != NULL) & (size < _SMALL_BYTES)
    cell = codes(*_step(rows, np.arange(len(rows))))
    gathered, summed = (np.bincount(cell, its)[cell] for its in (op.being("all_gather"), sums_up))
    found: Bool = sums_up & (gathered >= summed)
    return found


def _step(rows: Rows, row: Int64) -> tuple[Int64, Int64, Int64]:
    """The rank, the group and the step of some rows."""
    group = codes(rows.coded("communicator"))
    return rows.ints("rank")[row], group[row], rows.ints("step")[row]
