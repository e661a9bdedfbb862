"""A table of many rows in as few bytes as its values need, unpacked where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload
from weakref import ref

import numpy as np
import numpy.typing as npt

from commtrace.arrays import NULL, Int32, Int64
from commtrace.table import Coded, Columns, Table, joined

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Packed", "columns_in", "spans"]

_ALL = slice(None)
_FEW = 50_000  # rows: their frame takes little memory, and most measures ask for it


class Packed:
    """Rows of a table of integers and strings.

    A ``frame`` of all is kept while it is held; one of few rows, always.
    """

    def __init__(self, table: Table, parts: Sequence[Columns]) -> None:
        """The parts, one behind the other. Raises KeyError when one lacks a column."""
        self.table = table
        self._columns = {c.name: _packed([part[c.name] for part in parts]) for c in table.columns}
        self._frame: ref[pd.DataFrame] | None = None
        self._held: pd.DataFrame | None = None

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._columns[self.table.columns[0].name])

    @cached_property
    def of_ranks(self) -> Mapping[int, slice] | None:
        """The rows of each rank; None where they are not behind one another."""
        rank: Any = self._columns["rank"].values(_ALL)
        return spans(rank)

    @overload
    def __getitem__(self, names: str) -> pd.Series[Any]: ...

    @overload
    def __getitem__(self, names: list[str]) -> pd.DataFrame: ...

    def __getitem__(self, names: str | list[str]) -> pd.Series[Any] | pd.DataFrame:
        """A column, or some, as of the ``frame``, but without unpacking all the others."""
        if len(self) <= _FEW:
            return self.frame()[names]
        known = {column.name: column for column in self.table.columns}
        some = tuple(known[name] for name in ([names] if isinstance(names, str) else names))
        its = Table(self.table.name, self.table.row, some).frame(self.columns())
        return its[names] if isinstance(names, str) else its

    def rows(self, rows: slice | Int64) -> pd.DataFrame:
        """Some of its rows, indexed as in the ``frame``."""
        if len(self) <= _FEW:
            return self.frame().iloc[rows]
        its = self.table.frame(self.columns(rows))
        return its.set_axis(range(rows.start, rows.stop) if isinstance(rows, slice) else rows)

    def columns(self, rows: slice | Int32 | Int64 = _ALL) -> Columns:
        """Some of its rows, before pandas."""
        return _Rows(self._columns, rows)

    def frame(self) -> pd.DataFrame:
        """All of them."""
        frame = self._frame() if self._frame else None
        if frame is None:
            frame = self.table.frame(self.columns())
            self._frame = ref(frame)
            self._held = frame if len(frame) <= _FEW else None
        return frame

    def __getstate__(self) -> dict[str, object]:
        """Without frames, which are made again."""
        return {**self.__dict__, "_frame": None, "_held": None}


def columns_in(frame: pd.DataFrame, rows: slice | Int32 | Int64 = _ALL) -> Columns:
    """Rows of a table, before pandas."""
    return {str(name): _taken(column.array[rows]) for name, column in frame.items()}


def _taken(values: Any) -> Int64 | Coded:
    """Without a Series, which takes longer to make than a rank's rows to convert."""
    if values.dtype == "category":
        return Coded(values.codes.astype(np.int32), tuple(values.categories))
    taken: Int64 = values.to_numpy(np.int64, na_value=NULL)
    return taken


def spans(rank: Int64) -> Mapping[int, slice] | None:
    """The rows of each rank; None where they are not behind one another."""
    first = np.flatnonzero(np.append(True, rank[1:] != rank[:-1])[: rank.size])
    ranks = rank[first].tolist()
    if len(set(ranks)) < len(ranks):
        return None
    its = pairwise(np.append(first, rank.size).tolist())
    return {rank: slice(*span) for rank, span in zip(ranks, its, strict=True)}


class _Rows(Mapping[str, Any]):
    """Columns of some rows, each unpacked when it is asked for."""

    def __init__(
        self, columns: Mapping[str, _Integers | _Strings], rows: slice | Int32 | Int64
    ) -> None:
        self._columns, self._rows = columns, rows

    def __getitem__(self, name: str) -> Int64 | Coded:
        return self._columns[name].values(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True, eq=False)
class _Integers:
    """Integers as they are above a ``base``, which itself stands for NULL."""

    base: int
    above: npt.NDArray[Any]

    def __len__(self) -> int:
        return self.above.size

    def values(self, rows: slice | Int32 | Int64) -> Int64:
        above = self.above[rows]
        values = above.astype(np.int64)
        values += self.base
        values[above == 0] = NULL
        return values


@dataclass(frozen=True, eq=False)
class _Strings:
    codes: npt.NDArray[Any]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return self.codes.size

    def values(self, rows: slice | Int32 | Int64) -> Coded:
        return Coded(self.codes[rows].astype(np.int32), self.names)


def _packed(parts: list[Any]) -> _Integers | _Strings:
    if parts and isinstance(parts[0], Coded):
        its = joined(parts)
        return _Strings(its.codes.astype(np.min_scalar_type(-1 - len(its.names))), its.names)
    values = np.concatenate([np.empty(0, np.int64), *parts])
    is_null = values == NULL
    known = values[~is_null]
    base = int(known.min()) - 1 if known.size else 0
    most = int(known.max()) - base if known.size else 0
    above = np.where(is_null, 0, values - base)
    return _Integers(base, above.astype(np.min_scalar_type(most)))
