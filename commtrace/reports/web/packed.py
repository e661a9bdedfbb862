"""Columns of integers as text for a page's script: variable-length bytes, deflated, in base64."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable

import numpy as np

from commtrace.arrays import Int64

__all__ = ["packed"]

_BYTES = 9  # of seven bits each: below 2**63


def packed(columns: Iterable[Int64]) -> str:
    """The columns one behind the other; none has negative numbers.

    A number is its groups of seven bits, the lowest first, each but the last with its top bit set.
    """
    raw = b"".join(map(_varints, columns))
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def _varints(numbers: Int64) -> bytes:
    shifts = np.arange(_BYTES, dtype=np.int64) * 7
    left = numbers[:, None] >> shifts
    used = left > 0
    used[:, 0] = True
    more = np.concatenate((used[:, 1:], np.zeros((numbers.size, 1), np.bool_)), axis=1)
    return ((left & 0x7F) | (more << 7)).astype(np.uint8)[used].tobytes()
