"""Gradients of embedding tables that are all_reduced whole, though steps use few of the rows."""

from __future__ import annotations

import re
from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.json import decode

from commtrace.arrays import NULL, Float64, grouped
from commtrace.comms import canonical_dtype, element_bytes
from commtrace.errors import TraceError
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_rank
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.whole import step_count
from commtrace.reader.json import operator_inputs

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["EmbeddingTable", "SparseSums", "sparse_sums"]

_LOOKS_UP = ("aten::embedding", "aten::_embedding_bag")
_DENSE = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_MULTIPLIES = tuple(f"aten::{name}" for name in ("addmm", "linear", "matmul", "mm", "t"))
_MATRIX = 2
_BACKWARD = re.compile(r"EmbeddingBackward|EmbeddingBagBackward|embedding.*(?:backward|grad)", re.I)
_LEAST_BYTES = 1_000_000


class EmbeddingTable(Struct, frozen=True):
    """``rows`` × ``width`` numbers, of which a rank looks up at most ``used`` rows in a step."""

    rows: int
    width: int
    size_bytes: int
    used: float

    def needed(self, ranks: int) -> float:
        """What exchanging the rows that ranks use takes of an all_reduce of the whole.

        Each gets (n-1) × used rows, where a ring of n moves 2(n-1)/n of all.
        """
        return min(ranks * self.used / (2 * self.rows), 1.0)


class SparseSums(Struct, frozen=True, eq=False):
    """All_reduces, rows of ``called``, that carry a table's gradient, and what is needless."""

    table: EmbeddingTable
    operations: Rows
    ranks: int
    less_ns: Float64


def sparse_sums(run: Measures) -> tuple[SparseSums, ...]:
    """The all_reduces that carry the gradients of tables, of those of at least 1 MB.

    Of each table those of the smallest size that it fits into, as DDP's buckets hold it.
    """
    every = called(run)
    its = every.take(every.coded("op").being("all_reduce"))
    size = its.ints("size_bytes")
    its = its.take((size >= _LEAST_BYTES) & (its.ints("expected") != NULL))
    size, found = its.ints("size_bytes"), list[SparseSums]()
    for table in _tables(run) if len(its) else ():
        fits = size[size >= table.size_bytes]
        if not fits.size:
            continue
        mine = its.take(size == fits.min())
        ranks = int(mine.ints("expected")[0])
        less = mine.ints("transfer_ns") * (table.size_bytes / fits.min())
        found.append(SparseSums(table, mine, ranks, less * (1 - table.needed(ranks))))
    return tuple(found)


@measure
def _tables(run: Measures) -> tuple[EmbeddingTable, ...]:
    """The tables whose gradients are dense, as the first rank's file has them, the largest first.

    Not those whose rows are all used, as a head's that shares the table is, or has its shape. None
    where no operator or kernel makes such gradients, and where the file cannot be read again.
    """
    if not _makes_gradients(run):
        return ()
    file = file_of(run, min(run.rows("ranks").ints("rank").tolist()))
    steps = step_count(run)
    return () if file is None or not steps else _tables_of(file, steps)


def _makes_gradients(run: Measures) -> bool:
    tables = [run.rows("ops"), *(rows_of_rank(run, "kernels", one) for one in _first_with(run))]
    return any(
        its.coded("name").where(lambda name: bool(_BACKWARD.search(name))).any() for its in tables
    )


def _first_with(run: Measures) -> list[int]:
    return sorted(ranks_of(run, "kernels"))[:1]


def _tables_of(file: Path, steps: int) -> tuple[EmbeddingTable, ...]:
    try:
        its = operator_inputs(file)
    except TraceError:
        return ()
    if not its.name.where(_DENSE.__contains__).any():
        return ()
    used, element = Counter[tuple[int, int]](), dict[tuple[int, int], int]()
    multiplied = set[tuple[int, int]]()
    for kind in grouped(its.name, its.shapes, its.types):
        name, shapes, types = (
            str(column.at(int(kind[0]))) for column in (its.name, its.shapes, its.types)
        )
        dims = decode(shapes)
        if name in _LOOKS_UP and (table := _matrix(dims[0])):
            used[table] += kind.size * _numbers(dims[1:])
            element[table] = _element_bytes(types)
        elif name in _MULTIPLIES:
            multiplied |= {matrix for shape in dims if (matrix := _matrix(shape))}
    tables = (
        EmbeddingTable(rows, width, rows * width * element[rows, width], count / steps)
        for (rows, width), count in used.items()
        if not {(rows, width), (width, rows)} & multiplied
    )
    return tuple(sorted(tables, key=lambda its: -its.size_bytes))


def _matrix(shape: object) -> tuple[int, int] | None:
    """The shape of a matrix; None for all else that a file may have there."""
    match shape:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    return None


def _numbers(shapes: list[object]) -> int:
    """How many numbers the first of these holds; 0 where it is no shape of a tensor."""
    match shapes:
        case [[*sizes], *_]:
            return prod(size for size in sizes if isinstance(size, int))
    return 0


def _element_bytes(types: str) -> int:
    known = canonical_dtype(str((decode(types) or ["float"])[0]))
    return element_bytes(known or "float32")
