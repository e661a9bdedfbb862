"""What the first rank's operators worked on, for rules that need shapes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Int64, codes, first_rows, sums
from commtrace.comms import is_update
from commtrace.errors import TraceError
from commtrace.intervals import inside, union
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.reader.json import operator_inputs
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["FirstOperators", "first_operators", "first_rank", "numbers_in"]


class FirstOperators(Struct, frozen=True, eq=False):
    """A row for each name, shapes and types, as ``OperatorInputs`` has them, in and out of updates.

    ``count`` operators ran for ``time_ns`` in all; in the optimizer's step if they are of
    ``updates``.
    """

    name: Coded
    shapes: Coded
    types: Coded
    updates: Bool
    count: Int64
    time_ns: Int64

    def take(self, rows: Int64 | Bool) -> FirstOperators:
        """Some of them."""
        return FirstOperators(
            name=self.name.take(rows),
            shapes=self.shapes.take(rows),
            types=self.types.take(rows),
            updates=self.updates[rows],
            count=self.count[rows],
            time_ns=self.time_ns[rows],
        )


@measure
def first_operators(run: Measures) -> FirstOperators | None:
    """Those whose shapes were recorded; None where the file cannot be read again, or is several.

    It is read once for all who ask, which takes as long as reading it did.
    """
    rank = first_rank(run)
    if (file := file_of(run, rank)) is None:
        return None
    try:
        its = operator_inputs(file)
    except TraceError:
        return None
    updates = inside(its.start_ns, _updates(run, rank))
    kind = codes(its.name, its.shapes, its.types, updates)
    first = first_rows(kind)
    return FirstOperators(
        name=its.name.take(first),
        shapes=its.shapes.take(first),
        types=its.types.take(first),
        updates=updates[first],
        count=np.bincount(kind, minlength=first.size),
        time_ns=sums(kind, its.duration_ns, first.size),
    )


def first_rank(run: Measures) -> int:
    """The rank whose file is read."""
    return int(run.rows("ranks").ints("rank").min())


def _updates(run: Measures, rank: int) -> tuple[Int64, Int64]:
    """When the rank's optimizers took their steps."""
    steps = rows_of_rank(run, "steps", rank)
    mine = steps.take(steps.coded("label").where(is_update))
    return union(*mine.when())


def numbers_in(shape: object) -> int:
    """How many numbers a tensor holds, or a list of them; 0 of what is no shape."""
    match shape:
        case [[*_], *_]:
            return sum(map(numbers_in, shape))
        case [*sizes]:
            return prod(size for size in sizes if isinstance(size, int))
    return 0
