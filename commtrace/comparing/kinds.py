"""Which operations of two runs are alike: by what is called, where, of which type and size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from commtrace.arrays import NULL, Int64, codes, first_rows
from commtrace.measures import measure
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Operation", "kinds_of_rows", "resized"]


class Operation(NamedTuple):
    """What two runs' operations have in common; None is unknown."""

    op: str | None
    dimension: str | None
    dtype: str | None
    size_bytes: int | None


@measure
def kinds_of_rows(run: Measures) -> tuple[tuple[Operation, ...], Int64]:
    """The kinds of operations of a run, and which each row of ``collectives`` is of."""
    called = run.rows("collectives")
    dimension = dimensions_of(run, matched(run).matches.coded("communicator"))
    words, size = (called.coded("op"), dimension, called.coded("dtype")), called.ints("size_bytes")
    code = codes(*words, size)
    first = first_rows(code)
    sizes = [None if one == NULL else one for one in size[first].tolist()]
    kinds = map(Operation, *(its.take(first).decoded() for its in words), sizes)
    return tuple(kinds), code


def resized(
    base: Mapping[Operation, float], candidate: Mapping[Operation, float]
) -> dict[Operation, Operation]:
    """Which kinds of the base are one of the candidate with another size; values are counts.

    Of one operation, dimension and type each has just one that the other lacks, and as many.

    >>> one, other = Operation("barrier", None, None, 4), Operation("barrier", None, None, 8)
    >>> resized({one: 2.0}, {other: 2.0}) == {one: other}, resized({one: 2.0}, {other: 1.0})
    (True, {})
    """
    lacking: dict[Operation, tuple[list[Operation], list[Operation]]] = defaultdict(
        lambda: ([], [])
    )
    for at, (mine, others) in enumerate(((base, candidate), (candidate, base))):
        for kind in mine.keys() - others.keys():
            lacking[kind._replace(size_bytes=None)][at].append(kind)
    return {
        before[0]: after[0]
        for before, after in lacking.values()
        if len(before) == len(after) == 1 and base[before[0]] == candidate[after[0]]
    }
