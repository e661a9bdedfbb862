"""Python objects that are sent: torch.distributed pickles them, and sends their sizes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows, quantiles, sums

if TYPE_CHECKING:
    from commtrace.table import Rows

__all__ = ["exchanged_objects", "same_objects"]

_STEPS = 3
_LEAST_BYTES = 256  # pickles of a few numbers are as long as each other
_LONGER = 2.0  # times as long as unpickling


def same_objects(rows: Rows) -> Bool:
    """Which rows of ``sequences`` broadcast objects that are as large in every step.

    ``broadcast_object_list`` sends their sizes, as int64, and then so many bytes. The recorded
    window may cut a step. Not where the sender is busy for much longer before than the receivers
    are behind: it makes what it sends.
    """
    size, sequence, step = (rows.ints(name) for name in ("size_bytes", "sequence", "step"))
    at = _sizes(rows, "broadcast", ("broadcast",))
    at = at[rows.ints("root")[at] == rows.ints("root")[at + 1]]
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


def exchanged_objects(rows: Rows) -> Bool:
    """Which rows of ``sequences`` exchange objects between all ranks, in every step.

    ``all_gather_object`` and ``gather_object`` gather their sizes, as int64, and then the bytes.
    """
    found = np.zeros(len(rows), dtype=np.bool_)
    at = _sizes(rows, "all_gather", ("all_gather", "gather"))
    sequence = codes(rows.ints("sequence"))
    step = codes(sequence, rows.ints("step"))
    with_any = np.bincount(sequence[distinct(first_rows(step)[step[at]])], minlength=1)
    every = np.bincount(sequence[first_rows(step)], minlength=1)
    always = (with_any >= _STEPS) & (every[: with_any.size] - with_any <= 1)
    at = at[always[sequence[at]]] if at.size else at
    found[at] = found[at + 1] = True
    return found


def _sizes(rows: Rows, of_sizes: str, of_data: tuple[str, ...]) -> Int64:
    """The rows that tell sizes, right before the bytes in the same group and step."""
    op, dtype, step = rows.coded("op"), rows.coded("dtype"), rows.ints("step")
    sequence = rows.ints("sequence")
    sizes = op.being(of_sizes) & dtype.being("int64") & (step != NULL)
    data = op.where(of_data.__contains__) & dtype.being("uint8")
    in_row = [its[:-1] == its[1:] for its in (sequence, step)]
    return np.flatnonzero(np.logical_and.reduce((sizes[:-1], data[1:], *in_row)))


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
