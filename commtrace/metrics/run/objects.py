"""Python objects that are sent: torch.distributed pickles them, and sends their sizes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows, quantiles, sums

if TYPE_CHECKING:
    from commtrace.table import Rows

__all__ = ["same_objects"]

_STEPS = 3
_LEAST_BYTES = 256  # pickles of a few numbers are as long as each other
_LONGER = 2.0  # times as long as unpickling


def same_objects(rows: Rows) -> Bool:
    """Which rows of ``sequences`` broadcast objects that are as large in every step.

    ``broadcast_object_list`` sends their sizes, as int64, and then so many bytes. The recorded
    window may cut a step. Not where the sender is busy for much longer before than the receivers
    are behind: it makes what it sends.
    """
    op, dtype, step = rows.coded("op"), rows.coded("dtype"), rows.ints("step")
    size, root, sequence = (rows.ints(name) for name in ("size_bytes", "root", "sequence"))
    sent = op.being("broadcast") & (step != NULL)
    sizes, data = sent & dtype.being("int64"), sent & dtype.being("uint8")
    in_row = [its[:-1] == its[1:] for its in (sequence, root, step)]
    at = np.flatnonzero(np.logical_and.reduce((sizes[:-1], data[1:], *in_row)))
    found = np.zeros(len(rows), dtype=np.bool_)
    if not at.size:
        return found
    cell = codes(sequence[at], step[at])
    first = first_rows(cell)
    sent_bytes, whose = sums(cell, size[at + 1], first.size), codes(sequence[at][first])
    steps = np.bincount(whose)
    same = sent_bytes == quantiles(whose, sent_bytes, 50, steps.size)[whose]
    same &= sent_bytes >= _LEAST_BYTES
    always = (steps >= _STEPS) & (steps - np.bincount(whose, same) <= 1)
    mine = at[(same & always[whose])[cell]]
    group = codes(rows.coded("communicator"))
    for its in (mine[group[mine] == one] for one in distinct(group[mine])):
        if _only_pickles(rows, its):
            found[its] = found[its + 1] = True
    return found


def _only_pickles(rows: Rows, sizes: Int64) -> bool:
    """Whether senders, before they send sizes, do not much more than receivers behind the bytes."""
    rank, order, end = (rows.ints(name) for name in ("rank", "order", "end_ns"))
    sizes = sizes[(sizes > 0) & (sizes + 2 < rank.size)]
    sizes = sizes[(rank[sizes - 1] == rank[sizes]) & (rank[sizes + 2] == rank[sizes])]
    sends = rank[sizes] == rows.ints("root")[sizes]
    if sends.all() or not sends.any():
        return False
    before, behind = order[sizes] - end[sizes - 1], order[sizes + 2] - end[sizes + 1]
    pickling, unpickling = (
        float(np.median(time[who]) - np.median(time[~who]))
        for time, who in ((before, sends), (behind, ~sends))
    )
    return unpickling > 0 and pickling <= _LONGER * unpickling
