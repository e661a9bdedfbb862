"""A table's rows of one rank or device, without looking at those of all others each time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, rows_by
from commtrace.measures import measure
from commtrace.packed import spans
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "blocks",
    "blocks_of_ranks",
    "measured_ranks",
    "places_of_rank",
    "places_of_ranks",
    "ranks_of",
    "rows_of_device",
    "rows_of_rank",
    "rows_of_ranks",
]

_AT_ONCE = 1 << 19  # rows of packed tables: about 50 MB, and as much again for what is made of them
_WORK = ("kernels", "copies", "collectives", "ops")


def rows_of_rank(run: Measures, table: str, rank: int) -> Rows:
    """The rows of a rank, in the table's order."""
    return run.rows(table, places_of_rank(run, table, rank))


def rows_of_ranks(run: Measures, table: str, ranks: Sequence[int]) -> Rows:
    """The rows of some ranks, one behind the other."""
    return run.rows(table, places_of_ranks(run, table, ranks))


def blocks_of_ranks(run: Measures) -> list[list[int]]:
    """The ranks, so few together that their packed tables can be unpacked at once."""
    ranks = sorted({rank for table in (*_WORK, "steps") for rank in ranks_of(run, table)})
    packed = [its for name in _WORK if (its := run.packed(name))]
    count = -(-sum(map(len, packed)) // _AT_ONCE)
    return [its.tolist() for its in np.array_split(np.asarray(ranks, np.int64), max(count, 1))]


def measured_ranks(run: Measures) -> list[tuple[int, ...]]:
    """The same, but each that was measured by itself where it was read, to be asked for so."""
    parts: list[tuple[int, ...]] = []
    for some in blocks_of_ranks(run):
        for measured, group in groupby(some, run.measured.__contains__):
            its = tuple(group)
            parts += zip(its) if measured else [its]
    return parts


def blocks(run: Measures, table: str) -> Iterator[Rows]:
    """All rows, of a packed table in parts of whole ranks, unpacked in turn."""
    if len(ranks := blocks_of_ranks(run)) == 1:
        yield run.rows(table)
    else:
        yield from (rows_of_ranks(run, table, some) for some in ranks)


def ranks_of(run: Measures, table: str) -> Collection[int]:
    """The ranks that have rows."""
    return _by_rank(run, table).keys()


def places_of_rank(run: Measures, table: str, rank: int) -> slice | Int64:
    """Where these are."""
    return _by_rank(run, table).get(rank, slice(0, 0))


def places_of_ranks(run: Measures, table: str, ranks: Sequence[int]) -> slice | Int64:
    """Where those of some ranks are, one behind the other."""
    known = _by_rank(run, table)
    places = [known[rank] for rank in ranks if rank in known] or [slice(0, 0)]
    slices = [its for its in places if isinstance(its, slice)]
    if len(slices) == len(places) and all(a.stop == b.start for a, b in pairwise(slices)):
        return slice(slices[0].start, slices[-1].stop)
    each = [np.arange(its.start, its.stop) if isinstance(its, slice) else its for its in places]
    return np.concatenate(each)


def rows_of_device(run: Measures, table: str, rank: int, device: str) -> Rows:
    """The rows of a rank's device, in the table's order."""
    its = rows_of_rank(run, table, rank)
    return its.take(its.coded("device").being(device))


@measure
def _by_rank(run: Measures, table: str) -> Mapping[int, slice | Int64]:
    """Ranks that are one behind the other, as files are read, need no list of their rows."""
    packed = run.packed(table)
    its = packed.of_ranks if packed is not None else spans(run.rows(table).ints("rank"))
    if its is not None:
        return its
    return {rank: rows for (rank,), rows in rows_by(run.rows(table).ints("rank")).items()}
