"""all_gathers on CPUs by what is done at once with what they bring: summed, or copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.used_between import MOVES

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["copied_gathers", "summed_gathers"]

_COPIES = ("aten::copy_", "aten::to", "aten::_to_copy")
_JOINS = ("aten::stack", "aten::cat")
_SUMS = ("aten::sum", "aten::mean")
_ADDS = ("aten::add", "aten::add_")
_MOVES = frozenset(f"aten::{name}" for name in (*MOVES, "split", "unbind", "zeros"))
_ALWAYS = 0.8  # of the operations of one size
_NEVER = np.iinfo(np.int64).max

_Are = Callable[[tuple[str, ...], int], Bool]
"""Whether the operator so many behind each call is one of these, before the next call."""


@measure
def summed_gathers(run: Measures) -> Rows:
    """The all_gathers on CPUs of whose parts the next thing that is made is their sum.

    The rows of ``called`` of those groups, types and sizes of which nearly all are: the first rank
    of each tells it, by what runs behind its call.
    """
    return _followed(run, _MOVES, _are_summed)


@measure
def copied_gathers(run: Measures) -> Rows:
    """The same of those whose whole the next operator copies: to another type, or place."""
    return _followed(run, _MOVES.difference(_COPIES), lambda are: are(_COPIES, 0))


def _are_summed(are: _Are) -> Bool:
    joined = are(_JOINS, 0) & are(_SUMS, 1)
    added = are(_ADDS, 0) & are(_ADDS, 1)
    return are(_SUMS, 0) | joined | added


def _followed(run: Measures, makes_none: frozenset[str], so: Callable[[_Are], Bool]) -> Rows:
    """Those that are followed so, not counting operators that make nothing."""
    table = run.rows("collectives")
    mine = table.coded("op").being("all_gather") & table.coded("device").being("cpu")
    at = np.flatnonzero(mine & (table.ints("launch_ns") != NULL))
    of = operation_of(run)[at]
    once = first_rows(codes(of))
    at, of = at[once], of[once]
    rank = table.ints("rank")[at]
    so_followed = np.zeros(at.size, np.bool_)
    for one in distinct(rank).tolist():
        calls = run.rows("collectives", at[rank == one])
        so_followed[rank == one] = _of_rank(run, one, calls, makes_none, so)
    in_order = np.argsort(of)
    its, so_followed = called(run).take(of[in_order]), so_followed[in_order]
    communicator, dtype = its.coded("communicator"), its.coded("dtype")
    size = its.ints("size_bytes")
    kind = codes(communicator, dtype, size)
    always = np.bincount(kind, so_followed) / np.bincount(kind) >= _ALWAYS
    return its.take(always[kind] & communicator.known & dtype.known & (size != NULL))


def _of_rank(
    run: Measures, rank: int, calls: Rows, makes_none: frozenset[str], so: Callable[[_Are], Bool]
) -> Bool:
    """Whether each of a rank's all_gathers is followed so."""
    ops = rows_of_rank(run, "ops", rank)
    moves = ops.coded("name").where(makes_none.__contains__)
    ops = ops.take(ops.coded("kind").being("compute") & ~moves)
    every = rows_of_rank(run, "collectives", rank)
    thread, launch_ns = calls.ints("thread"), calls.ints("launch_ns")
    found = np.zeros(len(calls), np.bool_)
    for one in distinct(thread[thread != NULL]).tolist():
        own = ops.take(ops.ints("thread") == one)
        own = own.take(np.argsort(own.ints("start_ns"), kind="stable"))
        launches = np.sort(every.ints("launch_ns")[every.ints("thread") == one])
        found[thread == one] = so(_behind(own, launch_ns[thread == one], launches))
    return found


def _behind(ops: Rows, launch_ns: Int64, launches: Int64) -> _Are:
    """What the operators behind each call are, before the next one."""
    start = np.append(ops.ints("start_ns"), [_NEVER, _NEVER])
    first = np.searchsorted(start[:-2], launch_ns, side="right")
    following = np.append(launches, _NEVER)[np.searchsorted(launches, launch_ns, side="right")]

    def are(names: tuple[str, ...], behind: int) -> Bool:
        meant = np.append(ops.coded("name").where(names.__contains__), [False, False])
        return meant[first + behind] & (start[first + behind] < following)

    return are
