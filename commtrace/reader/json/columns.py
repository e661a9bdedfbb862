"""Columns that grow a batch of events at a time."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from commtrace.arrays import NULL, Bool, Int64
from commtrace.table import Coded

__all__ = ["Names", "Numbers", "decoded_integers", "integers"]


class _Index(dict[str | None, int]):
    """Numbers whatever it is asked for."""

    def __missing__(self, name: str | None) -> int:
        self[name] = number = len(self)
        return number


class Names:
    """One column of strings, as codes."""

    def __init__(self) -> None:
        self._index = _Index()
        self._codes = [np.empty(0, np.int32)]

    def extend(self, names: Collection[str | None]) -> None:
        """Add rows; no name may be None."""
        codes = map(self._index.__getitem__, names)
        self._codes.append(np.fromiter(codes, np.int32, len(names)))

    def join(self, later: Names) -> None:
        """Add another column's rows."""
        codes = np.array([*map(self._index.__getitem__, later._index)], dtype=np.int32)
        self._codes += [codes[part] for part in later._codes]

    def only(self, some: Bool) -> Names:
        """Some of the rows."""
        kept = Names()
        kept._index, kept._codes = self._index, [np.concatenate(self._codes)[some]]
        return kept

    def coded(self) -> Coded:
        """All rows."""
        return Coded(np.concatenate(self._codes), tuple(map(str, self._index)))


class Numbers:
    """Several columns of integers, ``start_ns`` among them."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.rows = 0
        self._parts: dict[str, list[Int64]] = {c: [np.empty(0, np.int64)] for c in columns}

    def extend(self, start_ns: Int64, **columns: Int64) -> None:
        """Add rows, in all columns."""
        self.rows += start_ns.size
        for name, values in {"start_ns": start_ns, **columns}.items():
            self._parts[name].append(values)

    def join(self, later: Numbers) -> None:
        """Add the rows of others of the same columns."""
        self.rows += later.rows
        for name, parts in later._parts.items():
            self._parts[name] += parts

    def only(self, some: Bool) -> Numbers:
        """Some of the rows."""
        kept = Numbers(())
        kept.rows = int(some.sum())
        kept._parts = {name: [np.concatenate(its)[some]] for name, its in self._parts.items()}
        return kept

    def joined(self, base_ns: int) -> dict[str, Int64]:
        """All rows, with ``base_ns`` added to the starts."""
        columns = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        columns["start_ns"] += base_ns
        return columns


def decoded_integers(values: Sequence[int | None]) -> Int64:
    """A column of what was decoded as integers or null: as ``integers``, faster."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, OverflowError):
        return integers(values)


def integers(values: Sequence[Any]) -> Int64:
    """A column; NULL for what is no integer, or too large for the column."""
    try:
        return np.array(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        fits = [type(value) is int and -(2**63) <= value < 2**63 for value in values]
        known = [v if fit else NULL for v, fit in zip(values, fits, strict=True)]
        return np.array(known, dtype=np.int64)
