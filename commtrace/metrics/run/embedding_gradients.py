"""Gradients of embedding tables that are all_reduced whole, though steps use few of the rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import replace

from commtrace.arrays import NULL, Float64, codes, distinct, grouped
from commtrace.comms import canonical_dtype, element_bytes
from commtrace.errors import TraceError
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_rank
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.whole import step_count
from commtrace.reader.json import operator_inputs

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["EmbeddingTable", "SparseSums", "large_sums", "sparse_sums"]

_LOOKS_UP = ("aten::embedding", "aten::_embedding_bag")
_DENSE = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_MULTIPLIES = tuple(
    f"aten::{name}" for name in ("addmm", "baddbmm", "bmm", "linear", "matmul", "mm", "t")
)
_OF_LAYERS = frozenset(("tp", "cp", "ep", "pp"))
_ONCE = 1.5  # times a step, of the same size: the window cuts a step
_BACKWARD = re.compile(r"EmbeddingBackward|EmbeddingBagBackward|embedding.*(?:backward|grad)", re.I)
_LEAST_BYTES = 1_000_000
_FILLS = 0.9


class EmbeddingTable(Struct, frozen=True):
    """``rows`` × ``width`` numbers, of which a rank looks up at most ``used`` rows in a step.

    In so many ``lookups``: of one in several micro-batches, or of several tables of this shape.
    """

    rows: int
    width: int
    size_bytes: int
    used: float
    lookups: int

    def needed(self, ranks: int) -> float:
        """What exchanging the rows that ranks use takes of an all_reduce of the whole.

        Each gets (n-1) × used rows, where a ring of n moves 2(n-1)/n of all.
        """
        return min(ranks * self.used / (2 * self.rows), 1.0)


class SparseSums(Struct, frozen=True, eq=False):
    """All_reduces, rows of ``called``, that carry the gradients of so many ``tables`` alike.

    ``less_ns`` of each is needless.
    """

    table: EmbeddingTable
    tables: int
    operations: Rows
    ranks: int
    less_ns: Float64


@measure
def large_sums(run: Measures) -> Rows:
    """The all_reduces, rows of ``called``, that may carry a table's gradient: of 1 MB or more.

    Not those of what layers sum, as tensor parallelism does.
    """
    every = called(run)
    group = every.coded("communicator")
    large = every.coded("op").being("all_reduce") & (every.ints("size_bytes") >= _LEAST_BYTES)
    large &= (every.ints("expected") != NULL) & group.known
    large &= ~dimensions_of(run, group).where(_OF_LAYERS.__contains__)
    return every.take(large)


def sparse_sums(run: Measures) -> tuple[SparseSums, ...]:
    """The ``large_sums`` that carry the gradients of tables.

    Of each table those of the smallest size that has room for it, as DDP's buckets hold it, and of
    which a group has one a step: of several alike nothing tells which it is in. Several tables of
    one shape are in several if they fill them.
    """
    its, found = large_sums(run), list[SparseSums]()
    size, group = its.ints("size_bytes"), its.coded("communicator")
    often = np.bincount(codes(group, size))[codes(group, size)] > _ONCE * step_count(run)
    left = {whole: whole for whole in distinct(size[~often]).tolist()}
    for table in _tables(run) if left else ():
        table, held = _filling(table, left)
        for whole, count in held.items():
            left[whole] -= count * table.size_bytes
        mine = its.take(~often & np.isin(size, list(held)))
        if not len(mine):
            continue
        sizes = mine.ints("size_bytes")
        needed = np.array([table.needed(ranks) for ranks in mine.ints("expected").tolist()])
        share = np.array([held[one] for one in sizes.tolist()]) * table.size_bytes / sizes
        less = mine.ints("transfer_ns") * share * (1 - needed)
        ranks = int(mine.ints("expected").max())
        found.append(SparseSums(table, sum(held.values()), mine, ranks, less))
    return tuple(found)


def _filling(table: EmbeddingTable, left: Mapping[int, int]) -> tuple[EmbeddingTable, Counter[int]]:
    """How many like a table are in operations of each size, which have so much room ``left``.

    One of all lookups, or as many tables as lookups, with their part of these.
    """
    held, several = Counter[int](), table.lookups > 1
    for _ in range(table.lookups):
        room = {whole: left[whole] - held[whole] * table.size_bytes for whole in left}
        fits = [whole for whole, its in room.items() if its >= table.size_bytes]
        several &= bool(fits)
        held.update([min(fits)] if fits else [])
    if several and table.lookups * table.size_bytes >= _FILLS * sum(held):
        return replace(table, used=table.used / table.lookups), held
    fits = [whole for whole, room in left.items() if room >= table.size_bytes]
    return table, Counter([min(fits)] if fits else [])


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
    tables = (
        rows_of_rank(run, table, min(ranks))
        for table in ("ops", "kernels")
        if (ranks := [*ranks_of(run, table)])
    )
    return any(
        its.coded("name").where(lambda name: bool(_BACKWARD.search(name))).any() for its in tables
    )


def _tables_of(file: Path, steps: int) -> tuple[EmbeddingTable, ...]:
    try:
        its = operator_inputs(file)
    except TraceError:
        return ()
    sparse = its.name.where(lambda name: "embedding" in name and "sparse_backward" in name)
    if not its.name.where(_DENSE.__contains__).any() or sparse.any():
        return ()  # of which tables gradients are dense no operator tells
    used, element = Counter[tuple[int, int]](), dict[tuple[int, int], int]()
    lookups = Counter[tuple[int, int]]()
    multiplied = set[tuple[int, int]]()
    for kind in grouped(its.name, its.shapes, its.types):
        name, shapes, types = (
            str(column.at(int(kind[0]))) for column in (its.name, its.shapes, its.types)
        )
        dims = decode(shapes)
        if name in _LOOKS_UP and (table := _matrix(dims[0])):
            used[table] += kind.size * _numbers(dims[1:])
            lookups[table] += kind.size
            element[table] = _element_bytes(types)
        elif name in _MULTIPLIES:
            multiplied |= {matrix for shape in dims if (matrix := _matrix(shape[-2:]))}
    tables = (
        EmbeddingTable(
            *(rows, width, rows * width * element[rows, width], count / steps),
            max(lookups[rows, width] // steps, 1),
        )
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
