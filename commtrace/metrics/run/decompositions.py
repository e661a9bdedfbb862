"""Pairs of operations that together do an all_reduce's work, and what one would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    NULL,
    Bool,
    Int64,
    codes,
    distinct,
    first_rows,
    least,
    most,
    numbered,
    rows_by,
)
from commtrace.comms import members
from commtrace.expect import fit
from commtrace.measures import measure
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.joined_rows import rows_of_operations
from commtrace.metrics.run.sequences import sequences
from commtrace.metrics.run.used_between import used_between
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, quantile
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["PAIR_TIMES", "Pair", "Reference", "pairs", "reference"]

_Kind = tuple[str, str, str, int]
"""A communicator, operation, type and size."""
_SECOND = {"reduce": "broadcast", "reduce_scatter": "all_gather"}
# One that the window cut off, or whose shards something happened to follow, spoils no claim.
_ALWAYS = 0.9
_MAX_RESIDUAL = 0.25
# Far from the tensor's size another protocol or algorithm may have run.
_NEAR = 16

PAIR_TIMES = Table(
    "pair_times",
    "one instance of a pair of operations, in the order of their starts",
    (
        Column("operation", "int64", "The first's number."),
        Column("operation_second", "int64", "The second's number."),
        Column(
            "time",
            "int64",
            "From the first's last arrival (of synchronous calls on the CPU from the last call, "
            "since gloo copies the input before it starts) to the second's last end.",
            "ns",
        ),
        Column("first", "int64", "The first's transfer, from there on.", "ns"),
        Column(
            "gap",
            "int64",
            "From the first's end to the second's start, on the rank where that is shortest.",
            "ns",
        ),
        Column("second", "int64", "The second's transfer.", "ns"),
        Column("start", "int64", "When the first began on any rank, on its own clock.", "ns"),
        Column("end", "int64", "When the second was done on any rank, on its own clock.", "ns"),
    ),
)


class Pair(Struct, frozen=True):
    """All instances of one pair in one group at one size, as often as each other.

    ``tensor_bytes`` is what an all_reduce (or reduce + broadcast) beside it reduces: the
    pair's own size, or an n-th of it; None where nothing beside it shows it. ``times`` are
    PAIR_TIMES.
    """

    first: str
    second: str
    executed: str
    communicator: str
    dtype: str
    group_size: int
    size_bytes: int
    tensor_bytes: int | None
    streams: tuple[int, ...]
    times: Rows

    @property
    def inflation(self) -> float:
        """Bytes moved, by those that the result needs."""
        return self.size_bytes / (self.tensor_bytes or self.size_bytes)


class Reference(Struct, frozen=True):
    """The time of one all_reduce of the tensor, and how it is known.

    ``how`` is ``measured`` in this trace, ``fitted`` to its all_reduces of other sizes, or
    ``expected`` from the pair itself, as a ring relates the two. ``upper_ns`` is the upper
    quartile, or the model's residual above. ``tree`` says that its kernel's name shows one.
    ``times`` are those measured, in ns and in order.
    """

    time_ns: float
    upper_ns: float
    how: str
    count: int
    tree: bool = False
    times: tuple[float, ...] = ()


@measure
def pairs(run: Measures) -> tuple[Pair, ...]:
    """Every decomposition of an all_reduce whose parts nothing uses in between.

    Sought once per trace, whichever rule asks.
    """
    return tuple(_pairs(run))


def _pairs(run: Measures) -> Iterator[Pair]:
    if not run.rows("collectives").coded("op").where(_SECOND.__contains__).any():
        return
    rows = sequences(run)
    first = np.flatnonzero(_followed(rows))
    free = first[~used_between(run, rows, first, first + 1)]
    yield from _found(run, rows, free)


def _followed(rows: Rows) -> Bool:
    """Which of SEQUENCES are the first half of what the next one can be the second half of."""
    op, dtype, root = rows.coded("op"), rows.coded("dtype"), rows.ints("root")
    follows = dtype.known[:-1] & (dtype.codes[:-1] == dtype.codes[1:])
    for name in ("sequence", "size_bytes"):
        follows &= rows.ints(name)[:-1] == rows.ints(name)[1:]
    follows &= (root[:-1] == root[1:]) | (root[:-1] == NULL) | (root[1:] == NULL)
    halves = (op.being(a)[:-1] & op.being(b)[1:] for a, b in _SECOND.items())
    followed: Bool = follows & np.logical_or.reduce([*halves])
    return followed


def _found(run: Measures, rows: Rows, free: Int64) -> Iterator[Pair]:
    """The pairs of some first halves, in the order of their kinds."""
    sure = _sure(rows, free)
    for (communicator, op, dtype, size), at in sure.items():
        count = _group_size(rows, int(at[0]))
        if count is None or count < 2 or not size:
            continue
        yield Pair(
            first=op,
            second=_SECOND[op],
            executed=str(rows.coded("executed").at(int(at[0]))),
            communicator=communicator,
            dtype=dtype,
            group_size=count,
            size_bytes=size,
            tensor_bytes=_tensor_bytes(rows, at, sure),
            streams=tuple(distinct(rows.ints("stream")[np.append(at, at + 1)]).tolist()),
            times=_times(run, rows, at),
        )


def _sure(rows: Rows, free: Int64) -> dict[_Kind, Int64]:
    """By kind the first halves, of those kinds whose halves are (nearly) always pairs."""
    columns = [rows.coded(name) for name in ("communicator", "op", "dtype")]
    size = rows.ints("size_bytes")
    paired = np.zeros(len(rows), np.bool_)
    paired[free] = paired[free + 1] = True
    # At the edge of what was recorded the other half may be missing.
    kind, counted = codes(*columns, size), paired | ~rows.flags("edge")
    often = np.bincount(kind, paired) / np.maximum(np.bincount(kind, counted), 1) >= _ALWAYS
    at = free[often[kind[free]] & often[kind[free + 1]]]
    of_kind = rows_by(*(column.take(at) for column in columns), size[at])
    return {key: at[its] for key, its in sorted(of_kind.items())}


def _group_size(rows: Rows, row: int) -> int | None:
    """As recorded, else as the communicator lists its ranks, else as the sizes have it."""
    known, taken, given = (int(rows.ints(c)[row]) for c in ("group_size", "in_bytes", "out_bytes"))
    if known != NULL:
        return known
    if listed := members(rows.coded("communicator").at(row)):
        return len(listed)
    if rows.coded("op").at(row) == "reduce_scatter" and taken != NULL and given > 0:
        return taken // given
    return None


def _tensor_bytes(rows: Rows, at: Int64, sure: Mapping[_Kind, Int64]) -> int | None:
    """The tensor's size as what is beside tells it, in the same group and type."""
    op, group, dtype = (rows.coded(name) for name in ("op", "communicator", "dtype"))
    row = int(at[0])
    size, part = (int(rows.ints(name)[row]) for name in ("size_bytes", "out_bytes"))
    if op.at(row) == "reduce":
        return size
    alike = (group.codes == group.codes[row]) & (dtype.codes == dtype.codes[row])
    whole = Counter(rows.ints("size_bytes")[alike & op.being("all_reduce")].tolist())
    for (*kind, other_size), others in sure.items():
        if kind == [group.at(row), "reduce", dtype.at(row)]:
            whole[other_size] += others.size
    if size in whole:
        return size
    # A size met now and then says nothing of a pair that runs in every step.
    return part if part != NULL and 2 * whole[part] >= at.size else None


def _times(run: Measures, rows: Rows, at: Int64) -> Rows:
    """PAIR_TIMES of the pairs with these first halves."""
    operation, start, end = (rows.ints(name) for name in ("operation", "start_ns", "end_ns"))
    pair = numbered(operation[at], operation[at + 1])
    one = first_rows(pair)
    count = one.size
    gap = least(pair, (start[at + 1] - end[at]).clip(min=0), count)
    numbers = operation[at[one]], operation[at[one] + 1]
    its = matched(run).operations
    first, second = (np.searchsorted(its.ints("operation"), number) for number in numbers)
    took = called(run).ints("transfer_ns")[first], its.ints("transfer_ns")[second]
    begun, done = called(run).ints("last_arrival_ns")[first], its.ints("last_end_ns")[second]
    # Without a common clock the parts are all there is.
    parts = took[0] + gap + took[1]
    whole = np.where((begun == NULL) | (done == NULL), 0, done - begun)
    begins = least(pair, start[at], count)
    each = PAIR_TIMES.rows(
        {
            "operation": numbers[0],
            "operation_second": numbers[1],
            "time": np.maximum(parts, whole),
            "first": took[0],
            "gap": gap,
            "second": took[1],
            "start": begins,
            "end": most(pair, end[at + 1], count),
        }
    )
    return each.take(np.argsort(begins, kind="stable"))


def reference(run: Measures, pair: Pair) -> Reference:
    """What one all_reduce of the tensor costs: measured, else fitted, else expected."""
    found, tensor = called(run), pair.tensor_bytes or pair.size_bytes
    size = found.ints("size_bytes")
    alike = found.coded("op").being("all_reduce") & (size > 0)
    alike &= found.coded("communicator").being(pair.communicator)
    alike &= found.coded("dtype").being(pair.dtype)
    same = found.take(alike & (size == tensor))
    if len(same):
        took, arrival = same.ints("transfer_ns"), same.ints("first_arrival_ns")
        half, upper = median(took), quantile(took, 0.75)
        in_turn = took[np.lexsort((arrival, arrival == NULL))]
        times = tuple(in_turn.astype(np.float64).tolist())
        return Reference(half, upper, "measured", len(same), _tree(run, same), times)
    near = found.take(alike & (size >= tensor / _NEAR) & (size <= tensor * _NEAR))
    model = fit(near.ints("size_bytes"), near.ints("transfer_ns"))
    if model and model.residual <= _MAX_RESIDUAL:
        time = model.time_ns(tensor)
        return Reference(time, time * (1 + model.residual), "fitted", model.points)
    expected = _expected_ns(pair)
    return Reference(expected, expected, "expected", len(pair.times))


def _expected_ns(pair: Pair) -> float:
    """By a ring's steps; where the first half ran as an all_reduce, that is one."""
    first, second = (median(pair.times.ints(half)) for half in ("first", "second"))
    if pair.executed == "all_reduce":
        whole = first
    elif pair.first == "reduce":
        whole = (first + second) * (pair.group_size - 1) / pair.group_size
    else:
        whole = first + second
    return whole / pair.inflation


def _tree(run: Measures, operations: Rows) -> bool:
    rows = rows_of_operations(run, operations)
    names = run.rows("collectives").coded("name").take(rows).occurring()
    return any("TREE" in name for name in names)
