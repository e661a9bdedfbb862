"""Collectives that carry Python objects, as torch.distributed's ``…_object`` ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64
from commtrace.measures import measure
from commtrace.metrics.run.sequences import sequences

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["began_with_objects", "of_objects"]

_LENGTH_BYTES = 8
_MOSTLY = 0.5  # of the operations


def of_objects(run: Measures, op: str) -> bool:
    """Whether most of these operations carry pickled objects, or their lengths."""
    carries = _carrying(run)
    asked = sequences(run).coded("op").being(op) if carries.any() else carries
    return bool(np.count_nonzero(carries & asked) > _MOSTLY * np.count_nonzero(asked))


def began_with_objects(run: Measures, rank: int) -> Int64:
    """When a rank's operations began that carry pickled objects, or their lengths."""
    if not (carries := _carrying(run)).any():
        return np.empty(0, np.int64)
    rows = sequences(run)
    began: Int64 = rows.ints("start_ns")[carries & (rows.ints("rank") == rank)]
    return began


@measure
def _carrying(run: Measures) -> Bool:
    """Which of ``sequences`` carry pickled objects, or their lengths; none of none at all.

    Objects are bytes (uint8), behind an operation of their group that has an int64 length for each
    (https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object).
    """
    if not run.rows("collectives").coded("dtype").being("uint8").any():
        return np.zeros(0, np.bool_)
    rows = sequences(run)
    size, dtype, sequence = rows.ints("size_bytes"), rows.coded("dtype"), rows.ints("sequence")
    group_size = rows.ints("group_size")
    small = (group_size != NULL) & (size <= _LENGTH_BYTES * group_size)
    lengths = (small & dtype.being("int64"))[:-1] & (sequence[1:] == sequence[:-1])
    objects = lengths & dtype.being("uint8")[1:]
    carries: Bool = np.append(False, objects) | np.append(objects, False)
    return carries
