"""As much of protobuf's wire format as Perfetto's packets need.

A message is the concatenation of its fields, in any order.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np

from commtrace.arrays import Int64

__all__ = ["TIME_BYTES", "double", "fixed64", "integer", "message", "text", "times", "varint"]

_VARINT, _FIXED64, _BYTES = 0, 1, 2
TIME_BYTES = 9
"""Of each time in ``times``: enough for 63 bits."""


@lru_cache(maxsize=1 << 16)
def varint(value: int) -> bytes:
    """A number of 64 bits, in sevens, the lowest first; what is negative is its complement."""
    if 0 <= value <= 0x7F:
        return bytes((value,))
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def integer(field: int, value: int) -> bytes:
    """A field of any of the types int, uint, bool and enum."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return varint(field << 3 | _FIXED64) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def message(field: int, *fields: bytes) -> bytes:
    """A field that is a message."""
    body = b"".join(fields)
    return varint(field << 3 | _BYTES) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    """A field of type string; what is no Unicode is replaced."""
    return message(field, value.encode("utf-8", "replace"))


def times(values: Int64) -> bytes:
    """Varints of many times, none negative, of TIME_BYTES each: padded, as readers allow."""
    shifts = np.arange(0, 7 * TIME_BYTES, 7, dtype=np.uint64)
    sevens = (values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    sevens[:, :-1] |= np.uint64(0x80)
    made: bytes = sevens.astype(np.uint8).tobytes()
    return made
