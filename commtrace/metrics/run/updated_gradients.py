"""Gradients that DDP all_reduces though the optimizer updates far fewer numbers."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.json import decode

from commtrace.arrays import Float64, Int64, codes, grouped, sums
from commtrace.comms import DDP_FORWARD, OPTIMIZER_STEP, element_bytes
from commtrace.errors import TraceError
from commtrace.intervals import inside, union
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.embedding_gradients import large_sums
from commtrace.metrics.run.whole import step_count
from commtrace.reader.json import operator_inputs

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["UnusedGradients", "unused_gradients"]

_FAR_MORE = 2.0  # times as many numbers
_SHARES, _LARGE_BYTES = frozenset(("broadcast", "all_gather")), 1_000_000
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
    its, rank = large_sums(run), min(run.rows("ranks").ints("rank").tolist())
    updates = _labels(run, rank, OPTIMIZER_STEP)
    passes = len(_labels(run, rank, DDP_FORWARD)[0])
    count = len(updates[0])
    if not len(its) or not count or not passes or _shares_updates(run):
        return None
    reduced = _numbers_of(its) / max(step_count(run), passes, 1)
    file = file_of(run, rank)
    updated = 0 if file is None else _updated(file, updates) / count
    if not 0 < _FAR_MORE * updated < reduced:
        return None
    less = np.asarray(its.ints("transfer_ns") * (1 - updated / reduced), np.float64)
    return UnusedGradients(its, round(reduced), round(updated), less)


def _labels(run: Measures, rank: int, label: str) -> tuple[Int64, Int64]:
    """When a rank's labelled ranges of this name, or beginning, began and ended."""
    steps = run.rows("steps")
    mine = steps.ints("rank") == rank
    mine &= steps.coded("label").where(lambda name: name.startswith(label))
    start_ns = steps.ints("start_ns")[mine]
    return start_ns, start_ns + steps.ints("duration_ns")[mine]


def _shares_updates(run: Measures) -> bool:
    """Whether ranks send one another large tensors in each step."""
    every = called(run)
    sent = every.coded("op").where(_SHARES.__contains__)
    sent &= every.ints("size_bytes") >= _LARGE_BYTES
    return int(sent.sum()) >= max(step_count(run), 1)


def _numbers_of(its: Rows) -> float:
    """How many numbers these reduce: of the group that reduces most."""
    dtype, group = its.coded("dtype"), codes(its.coded("communicator"))
    size = {name: element_bytes(name) for name in dtype.occurring()}
    each = np.array([*(size.get(name, 4) for name in dtype.names), 4])[dtype.codes]
    return float(sums(group, its.ints("size_bytes") // each, int(group.max()) + 1).max())


def _updated(file: Path, updates: tuple[Int64, Int64]) -> int:
    """The most numbers that one operator works on in place meanwhile; 0 if that is unknown."""
    try:
        its = operator_inputs(file)
    except TraceError:
        return 0
    meanwhile = inside(its.start_ns, union(*updates))
    rows = np.flatnonzero(meanwhile & its.name.where(_in_place))
    numbers = Counter[str]()
    for kind in grouped(its.name.take(rows), its.shapes.take(rows)):
        one = int(rows[kind[0]])
        name, shapes = str(its.name.at(one)), decode(str(its.shapes.at(one)))
        first = _size(shapes[0]) if shapes else 0
        if not first and name.startswith(_OF_MANY):
            return 0  # of whose tensors the profiler recorded no shapes
        numbers[name] += kind.size * first
    return max(numbers.values(), default=0)


def _in_place(name: str) -> bool:
    return name.startswith("aten::") and name.endswith("_")


def _size(shape: object) -> int:
    """How many numbers a tensor, or a list of them, holds; of a scalar none."""
    match shape:
        case [int(), *_]:
            return prod(size for size in shape if isinstance(size, int))
        case [[*_], *_]:
            return sum(map(_size, shape))
    return 0
