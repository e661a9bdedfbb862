"""all_gathers on CPUs by what is done at once with what they bring: summed, or copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.json import decode

from commtrace.arrays import NULL, Bool, Int64, among, codes, distinct, first_rows
from commtrace.measures import measure
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.first_operators import first_operators, numbers_in
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.operators_behind import calling_threads
from commtrace.metrics.run.used_between import MOVES

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["UsedGathers", "copied_gathers", "summed_gathers"]

_COPIES = ("aten::copy_", "aten::to", "aten::_to_copy")
_JOINS = ("aten::stack", "aten::cat")
_SUMS = ("aten::sum", "aten::mean")
_ADDS = ("aten::add", "aten::add_")
_MOVES = frozenset(f"aten::{name}" for name in (*MOVES, "split", "unbind", "zeros"))
_ALWAYS = 0.8  # of the operations of one size
_NEVER = np.iinfo(np.int64).max


class UsedGathers(Struct, frozen=True, eq=False):
    """Rows of ``called``, and for how long hosts did with each what they do with all of them."""

    operations: Rows
    then_ns: Int64


class _Behind(NamedTuple):
    """The operators of a thread, the first behind each of its calls, and what it calls next."""

    ops: Rows
    first: Int64
    following_ns: Int64

    def are(self, names: tuple[str, ...], behind: int) -> Bool:
        """Whether the operator so many behind each call is one of these, before the next call."""
        at = self._at(behind)
        in_time = np.append(self.ops.ints("start_ns"), _NEVER)[at] < self.following_ns
        its = self.ops.coded("name").where(names.__contains__)
        meant: Bool = in_time & np.append(its, False)[at]
        return meant

    def took_ns(self, names: tuple[str, ...], behind: int) -> Int64:
        """How long that took; 0 where it is none of these."""
        took = np.append(self.ops.ints("duration_ns"), 0)[self._at(behind)]
        meant: Int64 = took * self.are(names, behind)
        return meant

    def _at(self, behind: int) -> Int64:
        return np.minimum(self.first + behind, len(self.ops))


@measure
def summed_gathers(run: Measures) -> UsedGathers:
    """The all_gathers on CPUs of whose parts the next thing that is made is their sum.

    Of those groups, types and sizes of which nearly all are: the first rank of each tells it, by
    what runs behind its call. Where shapes were recorded not of those whose whole is only summed
    as one long row: that is no sum of parts.
    """
    its = _followed(run, _MOVES, _summing_ns)
    if not len(its.operations):
        return its
    of_parts = ~among(elements(its.operations), _summed_as_one(run))
    return UsedGathers(its.operations.take(of_parts), its.then_ns[of_parts])


def _summed_as_one(run: Measures) -> Int64:
    """How many elements all tensors have that are summed in one dimension, and in no two."""
    its = first_operators(run)
    if its is None:
        return np.zeros(0, np.int64)
    its = its.take(its.name.where(_SUMS.__contains__))
    found: dict[int, set[int]] = {}
    for row in range(its.count.size):
        shape = next(iter(decode(str(its.shapes.at(row)))), None)
        if isinstance(shape, list):
            found.setdefault(numbers_in(shape), set()).add(len(shape))
    return np.array([many for many, dimensions in found.items() if dimensions == {1}], np.int64)


@measure
def copied_gathers(run: Measures) -> UsedGathers:
    """The same of those whose whole the next operator copies: to another type, or place."""
    return _followed(run, _MOVES.difference(_COPIES), lambda its: its.took_ns(_COPIES, 0))


def _summing_ns(its: _Behind) -> Int64:
    by_one = its.took_ns(_SUMS, 0)
    joined, added = (
        its.took_ns(first, 0) * its.are(then, 1) + its.took_ns(then, 1) * its.are(first, 0)
        for first, then in ((_JOINS, _SUMS), (_ADDS, _ADDS))
    )
    summing: Int64 = by_one + joined + added
    return summing


def _followed(
    run: Measures, makes_none: frozenset[str], so_ns: Callable[[_Behind], Int64]
) -> UsedGathers:
    """Those that are followed by something so long, not counting operators that make nothing."""
    table = run.rows("collectives")
    mine = table.coded("op").being("all_gather") & table.coded("device").being("cpu")
    at = np.flatnonzero(mine & (table.ints("launch_ns") != NULL))
    of = operation_of(run)[at]
    once = first_rows(codes(of))
    at, of = at[once], of[once]
    rank = table.ints("rank")[at]
    then_ns = np.zeros(at.size, np.int64)
    for one in distinct(rank).tolist():
        calls = run.rows("collectives", at[rank == one])
        then_ns[rank == one] = _of_rank(run, one, calls, makes_none, so_ns)
    in_order = np.argsort(of)
    its, then_ns = called(run).take(of[in_order]), then_ns[in_order]
    communicator, dtype = its.coded("communicator"), its.coded("dtype")
    size = its.ints("size_bytes")
    kind = codes(communicator, dtype, size)
    always = np.bincount(kind, then_ns > 0) / np.bincount(kind) >= _ALWAYS
    mine = always[kind] & communicator.known & dtype.known & (size != NULL)
    return UsedGathers(its.take(mine), then_ns[mine])


def _of_rank(
    run: Measures,
    rank: int,
    calls: Rows,
    makes_none: frozenset[str],
    so_ns: Callable[[_Behind], Int64],
) -> Int64:
    """For how long each of a rank's all_gathers is followed so."""
    found = np.zeros(len(calls), np.int64)
    for thread in calling_threads(run, rank, calls):
        moves = thread.ops.coded("name").where(makes_none.__contains__)
        own, launch_ns = thread.ops.take(~moves), calls.ints("launch_ns")[thread.calls]
        first = np.searchsorted(own.ints("start_ns"), launch_ns, side="right")
        found[thread.calls] = so_ns(_Behind(own, first, thread.next_launch_ns(launch_ns)))
    return found
