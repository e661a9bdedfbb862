"""Arrays as every floor names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NULL", "Bool", "Float64", "Int64", "integers"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

NULL = np.iinfo(np.int64).min
"""Stands for a missing integer while a column is still a numpy array."""


def integers(column: pd.Series[Any]) -> Int64:
    """A column of integers as an array; what is missing is NULL."""
    if column.dtype == np.int64:
        return column.to_numpy()
    return column.fillna(NULL).to_numpy(dtype=np.int64)
