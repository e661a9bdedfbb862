"""How many elements operations move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.comms import element_bytes

if TYPE_CHECKING:
    from commtrace.table import Rows

__all__ = ["elements"]

_UNKNOWN_BYTES = 4  # of an element: most are float32


def elements(rows: Rows) -> Int64:
    """How many elements each of these moves, whose sizes are known; of an unknown type float32's.

    Columns: ``size_bytes``, ``dtype``.
    """
    dtype = rows.coded("dtype")
    each = np.array([*map(element_bytes, dtype.names), _UNKNOWN_BYTES], dtype=np.int64)
    many: Int64 = rows.ints("size_bytes") // each[dtype.codes]
    return many
