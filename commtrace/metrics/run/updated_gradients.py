"""Gradients that DDP all_reduces though the optimizer updates far fewer numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.json import decode

from commtrace.arrays import NULL, Float64, codes, sums
from commtrace.comms import DDP_FORWARD, is_update
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.embedding_gradients import large_sums
from commtrace.metrics.run.first_operators import (
    FirstOperators,
    first_operators,
    first_rank,
    numbers_in,
)
from commtrace.metrics.run.whole import step_count

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["UnusedGradients", "unused_gradients"]

_FAR_MORE = 2.0  # times as many numbers
_SHARES, _MOST = frozenset(("broadcast", "all_gather")), 0.5  # of the numbers reduced
_OF_MANY = ("aten::_foreach", "aten::_fused")


class UnusedGradients(Struct, frozen=True, eq=False):
    """The large all_reduces of ``reduced`` numbers at least, of which ``updated`` are used at most.

    For each update. ``operations`` are rows of ``called``; ``less_ns`` is what each takes in vain.
    """

    operations: Rows
    reduced: int
    updated: int
    less_ns: Float64


@measure
def unused_gradients(run: Measures) -> UnusedGradients | None:
    """What DDP reduces in vain; None where the optimizer updates most of it, or that is unknown.

    It updates no more numbers than any one of its operators works on in place; where these tell no
    shapes it is unknown. Each pass of a model may reduce the same again, of micro-batches. Who
    sends updates to others, as ZeRO does, updates a part of all.
    """
    its, label = large_sums(run), rows_of_rank(run, "steps", first_rank(run)).coded("label")
    passes, updates = (int(of.sum()) for of in (label.being(DDP_FORWARD), label.where(is_update)))
    if not len(its) or not updates or not passes:
        return None
    reduced = _numbers_of(its) / max(step_count(run), passes)
    if _shared(run) >= _MOST * reduced:
        return None
    operators = first_operators(run)
    updated = 0 if operators is None else _updated(operators) / updates
    if not 0 < _FAR_MORE * updated < reduced:
        return None
    less = np.asarray(its.ints("transfer_ns") * (1 - updated / reduced), np.float64)
    return UnusedGradients(its, round(reduced), round(updated), less)


def _shared(run: Measures) -> float:
    """How many numbers ranks send one another in each step."""
    every = called(run)
    sent = every.coded("op").where(_SHARES.__contains__) & (every.ints("size_bytes") != NULL)
    return float(elements(every.take(sent)).sum()) / max(step_count(run), 1)


def _numbers_of(its: Rows) -> float:
    """How many numbers these reduce: of the group that reduces most."""
    group = codes(its.coded("communicator"))
    return float(sums(group, elements(its), int(group.max()) + 1).max())


def _updated(its: FirstOperators) -> int:
    """The most numbers that one operator works on in place in updates; 0 if that is unknown."""
    mine = its.take(its.updates & its.name.where(_in_place))
    numbers = Counter[str]()
    for row, count in enumerate(mine.count.tolist()):
        name, shapes = str(mine.name.at(row)), decode(str(mine.shapes.at(row)))
        first = shapes[0] if shapes else None
        if not first and name.startswith(_OF_MANY):
            return 0  # of whose tensors the profiler recorded no shapes
        numbers[name] += count * numbers_in(first)
    return max(numbers.values(), default=0)


def _in_place(name: str) -> bool:
    return name.startswith("aten::") and name.endswith("_")
