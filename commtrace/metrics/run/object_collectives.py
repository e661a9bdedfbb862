"""Collectives that carry Python objects, as torch.distributed's ``…_object`` ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL
from commtrace.metrics.run.sequences import sequences

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["of_objects"]

_LENGTH_BYTES = 8
_MOSTLY = 0.5  # of the operations


def of_objects(run: Measures, op: str) -> bool:
    """Whether most of these operations carry pickled objects, or their lengths.

    Objects are bytes (uint8), behind an operation of their group that has an int64 length for each
    (https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object).
    """
    called = run.rows("collectives")
    if not called.coded("op").being(op).any() or not called.coded("dtype").being("uint8").any():
        return False
    rows = sequences(run)
    size, dtype, sequence = rows.ints("size_bytes"), rows.coded("dtype"), rows.ints("sequence")
    group_size = rows.ints("group_size")
    small = (group_size != NULL) & (size <= _LENGTH_BYTES * group_size)
    lengths = (small & dtype.being("int64"))[:-1] & (sequence[1:] == sequence[:-1])
    objects = lengths & dtype.being("uint8")[1:]
    carries = np.append(False, objects) | np.append(objects, False)
    asked = rows.coded("op").being(op)
    return bool(np.count_nonzero(carries & asked) > _MOSTLY * np.count_nonzero(asked))
