"""Tables: what each column is, described once; numpy inside, pandas at the face."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Coded", "Column", "Columns", "Table", "joined", "rows"]

DType = Literal["int64", "Int64", "float64", "category", "bool"]


class Coded(Struct, frozen=True):
    """A column of strings as codes into a dictionary; code -1 is null."""

    codes: np.ndarray[Any, np.dtype[np.int32]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: list[str | None]) -> Coded:
        """Encode plain strings."""
        index: dict[str, int] = {}
        codes = [-1 if v is None else index.setdefault(v, len(index)) for v in values]
        return cls(np.asarray(codes, dtype=np.int32), tuple(index))

    def decoded(self) -> list[str | None]:
        """The plain strings again."""
        return [None if code < 0 else self.names[code] for code in self.codes]

    def where(self, is_meant: Callable[[str], bool]) -> Bool:
        """Which of them are meant; null is not."""
        meant: Bool = np.asarray([*map(is_meant, self.names), False], np.bool_)[self.codes]
        return meant

    def being(self, value: str) -> Bool:
        """Which of them are this one."""
        return self.where(lambda name: name == value)


Columns = Mapping[str, "np.ndarray[Any, Any] | Coded"]
"""A table's columns before pandas: numpy arrays, and Coded for strings."""


class Column(Struct, frozen=True):
    """One column: ``Int64`` is an integer that can be null, ``category`` a string that can."""

    name: str
    dtype: DType
    about: str
    unit: str | None = None


class Table(Struct, frozen=True):
    """A table's name, what one row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def only(self, names: Collection[str]) -> tuple[Column, ...]:
        """The columns of these names, for a table that repeats them."""
        return tuple(column for column in self.columns if column.name in names)

    def frame(self, *parts: Columns) -> pd.DataFrame:
        """One DataFrame from the columns of any number of parts, concatenated in order.

        Raises KeyError when a part lacks a column, ValueError when lengths differ.
        """
        import pandas as pd

        columns = {c.name: _series(c, [part[c.name] for part in parts]) for c in self.columns}
        return pd.DataFrame(columns, copy=False)

    def from_rows(self, rows: list[dict[str, Any]]) -> pd.DataFrame:
        """One DataFrame from plain dicts; None is null. For small tables."""
        return self.frame(self.arrays(rows))

    def arrays(self, rows: list[dict[str, Any]]) -> Columns:
        """The columns of plain dicts, before pandas; None is null. For small tables."""
        return {c.name: _column(c, [row[c.name] for row in rows]) for c in self.columns}


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain dicts, the inverse of ``Table.from_rows``: null is None."""
    columns = {str(name): _plain(column) for name, column in frame.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(column: pd.Series[Any]) -> list[Any]:
    null = column.array.isna()
    if not null.any():
        return column.tolist()
    pairs = zip(column.tolist(), null.tolist(), strict=True)
    return [None if is_null else value for value, is_null in pairs]


def joined(parts: Sequence[Coded]) -> Coded:
    """Columns of strings, one behind the other."""
    index: dict[str, int] = {}
    codes = [np.empty(0, dtype=np.int32)]
    for part in parts:
        target = [index.setdefault(name, len(index)) for name in part.names]
        codes.append(np.asarray([*target, -1], dtype=np.int32)[part.codes])
    return Coded(np.concatenate(codes), tuple(index))


def _column(column: Column, values: list[Any]) -> np.ndarray[Any, Any] | Coded:
    if column.dtype == "category":
        return Coded.of(values)
    if column.dtype == "float64":
        return np.asarray([np.nan if v is None else v for v in values], dtype=np.float64)
    if column.dtype == "bool":
        return np.asarray(values, dtype=np.bool_)
    return np.asarray([NULL if v is None else v for v in values], dtype=np.int64)


def _series(column: Column, parts: list[Any]) -> Any:
    import pandas as pd

    if column.dtype == "category":
        return _categorical(parts)
    dtype = np.dtype(column.dtype.lower())
    values: Any = np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)
    if column.dtype == "Int64":
        return pd.arrays.IntegerArray(values, values == NULL)
    return values


def _categorical(parts: list[Coded]) -> pd.Categorical:
    import pandas as pd

    its = joined(parts)
    codes: Any = its.codes
    return pd.Categorical.from_codes(codes, dtype=_categories(its.names))


@lru_cache
def _categories(names: tuple[str, ...]) -> pd.CategoricalDtype:
    """Kept: that they differ takes pandas longer to find than all else of a small column."""
    import pandas as pd

    return pd.CategoricalDtype(pd.Index(list(names), dtype=object))
