"""Gradients of embedding tables that are all_reduced whole, though steps use few of the rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import replace

from commtrace.arrays import NULL, Float64, among, codes, distinct
from commtrace.comms import canonical_dtype, element_bytes
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_rank
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.first_operators import FirstOperators, first_operators, numbers_in
from commtrace.metrics.run.group_dimensions import between_layers
from commtrace.metrics.run.whole import step_count

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["EmbeddingTable", "SparseSums", "large_sums", "sparse_sums"]

_LOOKS_UP = ("aten::embedding", "aten::_embedding_bag")
_DENSE = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_MULTIPLIES = tuple(
    f"aten::{name}" for name in ("addmm", "baddbmm", "bmm", "linear", "matmul", "mm", "t")
)
_SELDOM, _ONCE = 0.5, 1.5  # times a step, of the same size: the window cuts a step
_BACKWARD = re.compile(r"EmbeddingBackward|EmbeddingBagBackward|embedding.*(?:backward|grad)", re.I)
_LEAST_BYTES = 1_000_000
_FILLS = 0.9


class EmbeddingTable(Struct, frozen=True):
    """``rows`` × ``width`` elements, of which a rank looks up at most ``used`` rows in a step.

    In so many ``lookups``: of one in several micro-batches, or of several tables of this shape.
    """

    rows: int
    width: int
    size_bytes: int
    used: float
    lookups: int

    @property
    def elements(self) -> int:
        """How many there are in the table, and in its gradient."""
        return self.rows * self.width

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
    large &= ~between_layers(run, group)
    return every.take(large)


def sparse_sums(run: Measures) -> tuple[SparseSums, ...]:
    """The ``large_sums`` that carry the gradients of tables.

    Of each table those of the fewest elements that have room for it, as DDP's buckets hold it, and
    of which a group has one a step: of several alike nothing tells which it is in. Several tables
    of one shape are in several if they fill them.
    """
    its, found = large_sums(run), list[SparseSums]()
    many, group = elements(its), its.coded("communicator")
    a_step = np.bincount(codes(group, many))[codes(group, many)] / max(step_count(run), 1)
    once = (a_step > _SELDOM) & (a_step <= _ONCE)
    left = {whole: whole for whole in distinct(many[once]).tolist()}
    for table in _tables(run) if left else ():
        table, held = _filling(table, left)
        for whole, count in held.items():
            left[whole] -= count * table.elements
        carry = once & among(many, np.array([*held], np.int64))
        if not carry.any():
            continue
        mine, of = its.take(carry), many[carry]
        needed = np.array([table.needed(ranks) for ranks in mine.ints("expected").tolist()])
        share = np.array([held[one] for one in of.tolist()]) * table.elements / of
        less = mine.ints("transfer_ns") * share * (1 - needed)
        ranks = int(mine.ints("expected").max())
        found.append(SparseSums(table, sum(held.values()), mine, ranks, less))
    return tuple(found)


def _filling(table: EmbeddingTable, left: Mapping[int, int]) -> tuple[EmbeddingTable, Counter[int]]:
    """How many like a table are in operations of each size, which have so much room ``left``.

    As many tables as lookups, with their part of these, if they fill them; else one of all lookups.
    """
    held, count = _held(table, left, table.lookups), table.lookups
    if held.total() == count > 1 and count * table.elements >= _FILLS * sum(held):
        return replace(table, used=table.used / count), held
    return table, _held(table, left, 1)


def _held(table: EmbeddingTable, left: Mapping[int, int], count: int) -> Counter[int]:
    """Where so many of a table are, each in the smallest that has room for it."""
    held = Counter[int]()
    for _ in range(count):
        fits = [one for one in left if left[one] >= (held[one] + 1) * table.elements]
        held.update([min(fits)] if fits else [])
    return held


@measure
def _tables(run: Measures) -> tuple[EmbeddingTable, ...]:
    """The tables whose gradients are dense, as the first rank's file has them, the largest first.

    Not those whose rows are all used, as a head's that shares the table is, or has its shape. None
    where no operator or kernel makes such gradients, and where the file cannot be read again.
    """
    steps = step_count(run)
    its = first_operators(run) if steps and _makes_gradients(run) else None
    return () if its is None else _tables_of(its, steps)


def _makes_gradients(run: Measures) -> bool:
    tables = (
        rows_of_rank(run, table, min(ranks))
        for table in ("ops", "kernels")
        if (ranks := [*ranks_of(run, table)])
    )
    return any(
        its.coded("name").where(lambda name: bool(_BACKWARD.search(name))).any() for its in tables
    )


def _tables_of(its: FirstOperators, steps: int) -> tuple[EmbeddingTable, ...]:
    sparse = its.name.where(lambda name: "embedding" in name and "sparse_backward" in name)
    if not its.name.where(_DENSE.__contains__).any() or sparse.any():
        return ()  # of which tables gradients are dense no operator tells
    used, element = Counter[tuple[int, int]](), dict[tuple[int, int], int]()
    lookups = Counter[tuple[int, int]]()
    multiplied = set[tuple[int, int]]()
    for row, count in enumerate(its.count.tolist()):
        name, shapes, types = (str(column.at(row)) for column in (its.name, its.shapes, its.types))
        dims = decode(shapes)
        if name in _LOOKS_UP and (table := _matrix(dims[0])):
            used[table] += count * numbers_in(dims[1] if len(dims) > 1 else None)
            lookups[table] += count
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


def _element_bytes(types: str) -> int:
    known = canonical_dtype(str((decode(types) or ["float"])[0]))
    return element_bytes(known or "float32")
