"""Integers and strings in as few bytes as they need."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from commtrace.arrays import NULL, Int32, Int64, distinct
from commtrace.table import Coded, joined

__all__ = ["Different", "Integers", "Strings", "Taken", "fewer", "if_one", "packed"]

Taken = slice | Int32 | Int64
"""Some of the values."""
_ALL = slice(None)
_MANY = 1 << 16  # values: so many are looked through for different ones
_SOME = 64  # of these


class Integers(Struct, frozen=True, eq=False):
    """Integers as they are above a ``base``, which itself stands for NULL."""

    base: int
    above: npt.NDArray[Any]

    @classmethod
    def of(cls, values: Int64) -> Integers:
        """These in as few bytes as they need."""
        is_null = values == NULL
        known = values[~is_null]
        base = int(known.min()) - 1 if known.size else 0
        most = int(known.max()) - base if known.size else 0
        above = np.where(is_null, 0, values - base)
        return cls(base, above.astype(np.min_scalar_type(most)))

    def __len__(self) -> int:
        return self.above.size

    def values(self, rows: Taken = _ALL) -> Int64:
        """Some of them as they were."""
        above = self.above[rows]
        values = above.astype(np.int64)
        values += self.base
        values[above == 0] = NULL
        return values


class Strings(Struct, frozen=True, eq=False):
    """Codes into ``names``, as narrow as there are names."""

    codes: npt.NDArray[Any]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return self.codes.size

    def values(self, rows: Taken) -> Coded:
        """Some of them as they were."""
        return Coded(self.codes[rows].astype(np.int32), self.names)


class Different(Struct, frozen=True, eq=False):
    """Integers of which few are different: codes into these."""

    codes: npt.NDArray[np.uint8]
    known: Int64

    def __len__(self) -> int:
        return self.codes.size

    def values(self, rows: Taken) -> Int64:
        """Some of them as they were."""
        values: Int64 = self.known[self.codes[rows]]
        return values


def packed(parts: list[Any]) -> Integers | Strings:
    """A column of integers or strings, one part behind the other."""
    if parts and isinstance(parts[0], Coded):
        its = joined(parts)
        return Strings(its.codes.astype(np.min_scalar_type(-1 - len(its.names))), its.names)
    return Integers.of(np.concatenate([np.empty(0, np.int64), *parts]))


def fewer(its: Integers | Strings) -> Integers | Strings | Different:
    """A column of one value only, or of few, in fewer bytes still."""
    if isinstance(its, Strings):
        return structs.replace(its, codes=if_one(its.codes))
    above = its.above
    some = above[:: max(above.size // _SOME, 1)]
    if above.itemsize > 1 and above.size > _MANY and distinct(some).size < some.size // 2:
        known, codes = np.unique(above, return_inverse=True)
        if known.size <= 1 << 8:
            return Different(codes.astype(np.uint8), Integers(its.base, known).values())
    return structs.replace(its, above=if_one(above))


def if_one(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The first alone in memory, if all are the same."""
    if not values.size or (values != values[0]).any():
        return values
    return np.broadcast_to(values[:1].copy(), values.size)
