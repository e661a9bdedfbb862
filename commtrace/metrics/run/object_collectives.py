"""Collectives that carry Python objects, as torch.distributed's ``…_object`` ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64
from commtrace.measures import measure
from commtrace.metrics.run.sequences import sequences

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Coded, Rows

__all__ = ["before_objects", "carry_objects", "lengths_of_objects", "objects_sent", "of_objects"]

_LENGTH_BYTES = 8
_MOSTLY = 0.5  # of the operations


def of_objects(run: Measures, op: str) -> bool:
    """Whether most of these operations carry pickled objects, or their lengths."""
    carries = _carrying(run)
    asked = sequences(run).coded("op").being(op) if carries.any() else carries
    return bool(np.count_nonzero(carries & asked) > _MOSTLY * np.count_nonzero(asked))


def carry_objects(run: Measures, operations: Int64) -> bool:
    """Whether most of these operations, by number, carry pickled objects, or their lengths."""
    if not (carries := _carrying(run)).any():
        return False
    numbers = sequences(run).ints("operation")[carries]
    return bool(np.isin(operations, numbers).mean() > _MOSTLY)


def objects_sent(run: Measures, rank: int) -> tuple[Int64, Int64]:
    """When a rank's operations began that carry pickled objects, or their lengths; their bytes."""
    if not (carries := _carrying(run)).any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = sequences(run)
    mine = carries & (rows.ints("rank") == rank)
    return rows.ints("start_ns")[mine], rows.ints("size_bytes")[mine]


def lengths_of_objects(rows: Rows) -> Bool:
    """Which of ``sequences`` tell the lengths of objects, which the next of their group carries.

    Objects are bytes (uint8), behind an int64 length for each: of one that is gathered from every
    rank one each, of a list that is broadcast as many as it has
    (https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object).
    """
    size, group_size = rows.ints("size_bytes"), rows.ints("group_size")
    few = (group_size != NULL) & (size <= _LENGTH_BYTES * group_size)
    lengths: Bool = few & before_objects(rows.coded("dtype"), rows.ints("sequence"))
    return lengths


def before_objects(dtype: Coded, whose: Int64) -> Bool:
    """Which of some calls, in order, are of lengths' type, and the next ``whose`` of objects'."""
    lengths = dtype.being("int64")[:-1] & (whose[1:] == whose[:-1])
    return np.append(lengths & dtype.being("uint8")[1:], np.zeros(min(len(dtype), 1), np.bool_))


@measure
def _carrying(run: Measures) -> Bool:
    """Which of ``sequences`` carry pickled objects, or their lengths; none of none at all."""
    if not run.rows("collectives").coded("dtype").being("uint8").any():
        return np.zeros(0, np.bool_)
    lengths = lengths_of_objects(sequences(run))
    carries: Bool = lengths | np.append(False, lengths[:-1])
    return carries
