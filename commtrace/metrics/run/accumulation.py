"""Reductions of gradients that nobody uses: what later micro-batches add to, or no update takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, codes, distinct, first_rows, grouped, most, sums
from commtrace.metrics.run.gradients import placed
from commtrace.metrics.run.sequences import SEQUENCES
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["REPEATED", "of_another_pass", "repeated_in_accumulation"]

REPEATED = Table(
    "repeated_in_accumulation",
    "one reduction of a micro-batch that the last of its accumulation makes needless",
    (
        *SEQUENCES.columns,
        Column("micro_batches", "int64", "Those of its accumulation that reduce."),
    ),
)


def repeated_in_accumulation(run: Measures, rows: Rows) -> Rows:
    """Of ``sequences`` the reductions that the last of their accumulation makes needless: REPEATED.

    One accumulation is the micro-batches of one step, and of one labelled range in it, with
    no optimizer's step between them; DDP and FSDP2 mark each by its forward pass. Needless is what
    a micro-batch reduces that is not the last, if the last reduces the same sizes. Groups
    that also reduce during a forward pass do not reduce gradients (tensor parallelism); what
    FSDP2 reduces it marks.
    """
    if (its := placed(run, rows)) is None:
        return REPEATED.rows()
    group = codes(rows.coded("communicator"))[its.row]
    parallel = np.isin(group, group[its.in_forward])
    # Behind the optimizer's step it is no gradient of that pass.
    mine = ~parallel & (its.forward >= 0) & its.before_update
    row, forward, group = its.row[mine], its.forward[mine], group[mine]
    rank, step = rows.ints("rank")[row], rows.ints("step")[row]
    whole = codes(rank, group, step, its.range[mine], its.updates[mine])
    latest = most(whole, forward, whole.max(initial=-1) + 1)
    last = forward == latest[whole]
    if last.all():
        return REPEATED.rows()
    batch = codes(whole, forward)
    size = sums(batch, rows.ints("size_bytes")[row], int(batch.max()) + 1)[batch]
    of_last = np.zeros(latest.size, dtype=np.int64)
    np.maximum.at(of_last, whole[last], size[last])
    needless = ~last & (size == of_last[whole])
    count = np.bincount(whole[first_rows(batch)])
    found = rows.take(row[needless])
    return REPEATED.rows({**found.columns, "micro_batches": count[whole[needless]]})


def of_another_pass(run: Measures, rows: Rows) -> Int64:
    """The reductions, rows of ``sequences``, of gradients that another pass is for.

    A pass is what one update of a step ends. One that reduces the very sizes of another pass, and
    more, updates what is more: the gradients that both reduce are the other's, which computes its
    own. A generator's pass through a discriminator whose parameters require gradients does so.
    """
    nothing = np.empty(0, np.int64)
    if (its := placed(run, rows)) is None:
        return nothing
    group = codes(rows.coded("communicator"))[its.row]
    parallel = np.isin(group, group[its.in_forward])
    mine = ~parallel & its.before_update
    row, updates = its.row[mine], its.updates[mine]
    size = rows.ints("size_bytes")[row]
    found = [nothing]
    for step in grouped(rows.ints("rank")[row], group[mine], rows.ints("step")[row]):
        passes = {one: step[updates[step] == one] for one in distinct(updates[step]).tolist()}
        sizes = {one: Counter(size[some].tolist()) for one, some in passes.items()}
        for one, some in passes.items():
            own = [its for its in sizes.values() if its < sizes[one]]
            if own:
                smaller = max(own, key=Counter.total)
                found.append(row[some[np.isin(size[some], list(smaller))]])
    return np.concatenate(found)
