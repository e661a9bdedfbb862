"""A table of many rows in as few bytes as its values need, unpacked where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int32, Int64
from commtrace.few_bytes import Integers, Strings, Taken, fewer, packed
from commtrace.table import Coded, Columns, Rows, Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Packed", "PackedColumns", "columns_in", "pack", "spans"]

_ALL = slice(None)
_FEW = 50_000  # rows: their frame takes little memory, and most measures ask for it
_UNPACKED = 8_000  # rows: of fewer a column is kept as it was asked for


class PackedColumns(Mapping[str, Any]):
    """Columns of one file in few bytes, each unpacked whenever it is asked for."""

    def __init__(self, columns: Mapping[str, Integers | Strings]) -> None:
        self.packed = columns

    def __getitem__(self, name: str) -> Int64 | Coded:
        return self.packed[name].values(_ALL)

    def __iter__(self) -> Iterator[str]:
        return iter(self.packed)

    def __len__(self) -> int:
        return len(self.packed)


def pack(*parts: Columns) -> PackedColumns:
    """Columns of integers and strings, one part behind the other."""
    return PackedColumns({name: packed([part[name] for part in parts]) for name in parts[0]})


class Packed:
    """Rows of a table of integers, truths and strings.

    A ``frame`` of all is kept while it is held; one of few rows, always.
    """

    def __init__(self, table: Table, parts: Sequence[Columns]) -> None:
        """The parts, one behind the other. Raises KeyError when one lacks a column."""
        self.table = table
        names = [column.name for column in table.columns]
        packed = [part if isinstance(part, PackedColumns) else pack(part) for part in parts]
        # Most runs lack some table: what thousands of empty columns take would be more than theirs.
        packed = [part for part in packed if len(part.packed[names[0]])] or packed[:1]
        self._parts: list[dict[str, Any]] = [
            {name: fewer(part.packed[name]) for name in names} for part in packed
        ]
        rows = [len(part[names[0]]) for part in self._parts]
        self._bounds = np.cumsum([0, *rows])
        self._names = {
            column.name: _Names.of(self._parts, column.name)
            for column in table.columns
            if column.dtype == "category"
        }
        self._flags = {column.name for column in table.columns if column.dtype == "bool"}
        self._frame: ref[pd.DataFrame] | None = None
        self._held: pd.DataFrame | None = None

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self._bounds[-1])

    @cached_property
    def of_ranks(self) -> Mapping[int, slice] | None:
        """The rows of each rank; None where they are not behind one another."""
        each = (spans(part["rank"].values(_ALL)) for part in self._parts)
        found: dict[int, slice] = {}
        for its, first in zip(each, self._bounds.tolist(), strict=False):
            if its is None:
                return None
            for rank, span in its.items():
                begun = found.get(rank, slice(first + span.start, first + span.start))
                if begun.stop != first + span.start:
                    return None
                found[rank] = slice(begun.start, first + span.stop)
        return found

    def columns(self, rows: Taken = _ALL) -> Columns:
        """Some of its rows, each column unpacked when it is asked for."""
        return _Rows(self, rows)

    def values(self, name: str, rows: Taken = _ALL) -> Int64 | Bool | Coded:
        """A column of some of its rows."""
        places, order = self._places(rows)
        each = [self._parts[part][name].values(its) for part, its in places]
        if (known := self._names.get(name)) is None:
            its: Int64 = _in_order([np.empty(0, np.int64), *each], order)
            return its.astype(np.bool_) if name in self._flags else its
        codes = (
            known.numbers[part][one.codes] for (part, _), one in zip(places, each, strict=True)
        )
        return Coded(_in_order([np.empty(0, np.int32), *codes], order), known.names)

    @cached_property
    def all(self) -> Rows:
        """All rows, whose columns are unpacked when they are asked for; of few rows, once."""
        return Rows(self.table, self.columns(), len(self))

    def some(self, rows: Taken) -> Rows:
        """Some of its rows: of each column no others are unpacked."""
        count = len(range(*rows.indices(len(self)))) if isinstance(rows, slice) else rows.size
        return Rows(self.table, self.columns(rows), count)

    def ints(self, name: str) -> Int64:
        """A column of integers."""
        return self.all.ints(name)

    def flags(self, name: str) -> Bool:
        """A column of truths."""
        return self.all.flags(name)

    def coded(self, name: str) -> Coded:
        """A column of strings."""
        return self.all.coded(name)

    def _places(self, rows: Taken) -> tuple[list[tuple[int, Taken]], Int64 | None]:
        """The rows of each part that has some; which of these are which, where they are mixed."""
        if len(self._parts) == 1:
            return [(0, rows)], None
        if isinstance(rows, slice):
            first, last, _ = rows.indices(len(self))
            # Only these are looked at: most who ask want one part's, and each part's is asked for.
            some = slice(
                max(int(np.searchsorted(self._bounds, first, side="right")) - 1, 0),
                int(np.searchsorted(self._bounds, last)) + 1,
            )
            bounds = pairwise(self._bounds[some].tolist())
            return [
                (part, slice(max(first - begin, 0), min(last, end) - begin))
                for part, (begin, end) in enumerate(bounds, some.start)
                if max(first, begin) < min(last, end)
            ], None
        part = np.searchsorted(self._bounds, rows, side="right") - 1
        order = np.argsort(part, kind="stable")
        parts, firsts = np.unique(part[order], return_index=True)
        its = np.split(rows[order], firsts[1:])
        return [
            (number, rows - self._bounds[number])
            for number, rows in zip(parts.tolist(), its, strict=False)
        ], order

    def frame(self) -> pd.DataFrame:
        """All of them."""
        frame = self._frame() if self._frame else None
        if frame is None:
            frame = Rows(self.table, self.columns(), len(self)).frame()
            self._frame = ref(frame)
            self._held = frame if len(frame) <= _FEW else None
        return frame

    def __getstate__(self) -> dict[str, object]:
        """Without frames, which are made again."""
        kept = {name: its for name, its in self.__dict__.items() if name != "all"}
        return {**kept, "_frame": None, "_held": None}


class _Names(Struct, frozen=True, eq=False):
    """The names of all parts, and in each part the number of each of its own; -1 at the end."""

    names: tuple[str, ...]
    numbers: list[Int32]

    @classmethod
    def of(cls, parts: Sequence[Mapping[str, Any]], column: str) -> _Names:
        index: dict[str, int] = {}
        each = (
            [index.setdefault(name, len(index)) for name in part[column].names] for part in parts
        )
        numbers = [np.asarray([*its, -1], np.int32) for its in each]
        return cls(tuple(index), numbers)


class _Rows(Mapping[str, Any]):
    """Columns of some rows, each unpacked when it is asked for."""

    def __init__(self, of: Packed, rows: Taken) -> None:
        self._of, self._rows = of, rows
        self._known: dict[str, Int64 | Bool | Coded] = {}

    def __getitem__(self, name: str) -> Int64 | Bool | Coded:
        if (known := self._known.get(name)) is not None:
            return known
        its = self._of.values(name, self._rows)
        if len(its) <= _UNPACKED:
            self._known[name] = its
        return its

    def __iter__(self) -> Iterator[str]:
        return (column.name for column in self._of.table.columns)

    def __len__(self) -> int:
        return len(self._of.table.columns)


def _in_order(parts: list[Any], order: Int64 | None) -> Any:
    values = np.concatenate(parts)
    if order is None:
        return values
    found = np.empty_like(values)
    found[order] = values
    return found


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
