"""Tables: what each column is, described once; numpy inside, pandas at the face."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int32, Int64

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Coded", "Column", "Columns", "Rows", "Table", "joined", "rows"]

DType = Literal["int64", "Int64", "float64", "category", "bool"]


class Coded(Struct, frozen=True):
    """A column of strings as codes into a dictionary; code -1 is null."""

    codes: np.ndarray[Any, np.dtype[np.int32]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str | None]) -> Coded:
        """Encode plain strings."""
        index: dict[str, int] = {}
        codes = [-1 if v is None else index.setdefault(v, len(index)) for v in values]
        return cls(np.asarray(codes, dtype=np.int32), tuple(index))

    def __len__(self) -> int:
        """How many there are."""
        return self.codes.size

    def at(self, row: int) -> str | None:
        """One of them."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]

    def take(self, rows: slice | Int32 | Int64 | Bool) -> Coded:
        """Some of them: a slice, places, or those that a flag is set for."""
        return Coded(self.codes[rows], self.names)

    def ordered(self) -> Coded:
        """The same with the names in their order, so that codes are in that of the strings.

        >>> Coded.of(["b", None, "a"]).ordered().codes.tolist()
        [1, -1, 0]
        """
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        codes = np.full(len(order) + 1, -1, np.int32)
        codes[order] = np.arange(len(order))
        return Coded(codes[self.codes], tuple(self.names[code] for code in order))

    def decoded(self) -> list[str | None]:
        """The plain strings again."""
        names = [*self.names, None]
        return [names[code] for code in self.codes.tolist()]

    def occurring(self) -> list[str]:
        """Those that occur, each once, in the order of their names' codes."""
        found = np.flatnonzero(np.bincount(self.codes[self.codes >= 0], minlength=1))
        return [self.names[code] for code in found.tolist()]

    @property
    def known(self) -> Bool:
        """Which of them are not null."""
        known: Bool = self.codes >= 0
        return known

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

    def rows(self, *parts: Columns) -> Rows:
        """Rows of the columns of any number of parts, one behind the other.

        Raises KeyError when a part lacks a column, ValueError when lengths differ.
        """
        columns = {c.name: _concatenated(c, [part[c.name] for part in parts]) for c in self.columns}
        if len({len(its) for its in columns.values()}) > 1:
            raise ValueError(f"{self.name}: columns differ in length")
        return Rows(self, columns)

    def of_dicts(self, rows: list[dict[str, Any]]) -> Rows:
        """Rows of plain dicts; None is null. For small tables."""
        return self.rows(self.arrays(rows))

    def arrays(self, rows: list[dict[str, Any]]) -> Columns:
        """The columns of plain dicts; None is null. For small tables."""
        return {c.name: _column(c, [row[c.name] for row in rows]) for c in self.columns}


class _Both(Mapping[str, Any]):
    """A table's columns: some, and others behind them."""

    def __init__(self, table: Table, first: Columns, others: Columns) -> None:
        self._names = tuple(column.name for column in table.columns)
        self._first, self._others = first, others

    def __getitem__(self, name: str) -> Any:
        return self._first[name] if name in self._first else self._others[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Rows:
    """Rows of a table as numpy columns: strings are Coded, a missing integer is NULL."""

    def __init__(self, table: Table, columns: Columns, count: int | None = None) -> None:
        """Columns that are unpacked when they are asked for come with the ``count`` of rows."""
        self.table = table
        self.columns = columns
        self._count = len(columns[table.columns[0].name]) if count is None else count

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def ints(self, name: str) -> Int64:
        """A column of integers."""
        return cast("Int64", self.columns[name])

    def floats(self, name: str) -> Float64:
        """A column of numbers; NaN is null."""
        return cast("Float64", self.columns[name])

    def flags(self, name: str) -> Bool:
        """A column of truths."""
        return cast("Bool", self.columns[name])

    def coded(self, name: str) -> Coded:
        """A column of strings."""
        return cast("Coded", self.columns[name])

    def when(self) -> tuple[Int64, Int64]:
        """From when to when each was, of rows that have a ``start_ns`` and a ``duration_ns``."""
        start_ns = self.ints("start_ns")
        return start_ns, start_ns + self.ints("duration_ns")

    def take(self, rows: slice | Int32 | Int64 | Bool) -> Rows:
        """Some of them: a slice, places, or those that a flag is set for."""
        columns: dict[str, Any] = {}
        for column in self.table.columns:
            its = self.columns[column.name]
            columns[column.name] = its.take(rows) if isinstance(its, Coded) else its[rows]
        return Rows(self.table, columns)

    def having(self, table: Table, columns: Columns) -> Rows:
        """The same rows with these columns, too, or in place of theirs; of no others is a copy."""
        return Rows(table, _Both(table, columns, self.columns), len(self))

    def only(self, *names: str) -> Rows:
        """The same with these columns alone."""
        its = {column.name: column for column in self.table.columns}
        table = Table(self.table.name, self.table.row, tuple(its[name] for name in names))
        return Rows(table, self.columns, len(self))

    def dicts(self) -> list[dict[str, Any]]:
        """Plain dicts, the inverse of ``Table.of_dicts``; null is None. For small tables."""
        columns = {c.name: _values(c, self.columns[c.name]) for c in self.table.columns}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame, made when it is first asked for."""
        import pandas as pd

        if self._frame is None:
            columns = {c.name: _series(c, self.columns[c.name]) for c in self.table.columns}
            self._frame = pd.DataFrame(columns, copy=False)
        return self._frame

    _frame: pd.DataFrame | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the frame, which is made again."""
        return {**self.__dict__, "_frame": None}


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain dicts, the inverse of ``Table.of_dicts``: null is None."""
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


def _concatenated(column: Column, parts: list[Any]) -> np.ndarray[Any, Any] | Coded:
    if column.dtype == "category":
        return joined(parts)  # so that one string has one code
    dtype = np.dtype(column.dtype.lower())
    if len(parts) == 1:
        return np.asarray(parts[0], dtype)
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)


def _values(column: Column, its: Any) -> list[Any]:
    if isinstance(its, Coded):
        return its.decoded()
    values: list[Any] = its.tolist()
    if column.dtype == "Int64":
        return [None if value == NULL else value for value in values]
    if column.dtype == "float64":
        return [None if value != value else value for value in values]
    return values


def _column(column: Column, values: list[Any]) -> np.ndarray[Any, Any] | Coded:
    if column.dtype == "category":
        return Coded.of(values)
    if column.dtype == "float64":
        return np.asarray([np.nan if v is None else v for v in values], dtype=np.float64)
    if column.dtype == "bool":
        return np.asarray(values, dtype=np.bool_)
    return np.asarray([NULL if v is None else v for v in values], dtype=np.int64)


def _series(column: Column, its: Any) -> Any:
    """A copy, as whoever has the frame may change it."""
    import pandas as pd

    if isinstance(its, Coded):
        codes: Any = its.codes.copy()
        return pd.Categorical.from_codes(codes, dtype=_categories(its.names))
    values: Any = np.array(its, np.dtype(column.dtype.lower()))
    if column.dtype == "Int64":
        return pd.arrays.IntegerArray(values, values == NULL)
    return values


@lru_cache
def _categories(names: tuple[str, ...]) -> pd.CategoricalDtype:
    """Kept: that they differ takes pandas longer to find than all else of a small column."""
    import pandas as pd

    return pd.CategoricalDtype(pd.Index(list(names), dtype=object))
