"""Gradients that a program averages though DDP has averaged them already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, first_rows, most, rows_by, sorted_by, sums
from commtrace.comms import DDP_FORWARD, is_floating
from commtrace.metrics.run.called_in import in_backward
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.known_already import group_and_type
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["averaged_again", "averaged_in_other_pieces"]

_ALWAYS = 0.9  # of the steps: the window may cut one
_LEAST = 25_000  # elements: gradients of a model


def averaged_again(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` are all_reduces behind DDP's own, of as much as these.

    Of as many bytes of one type, or of as many elements of any float types, between the first
    forward passes of (nearly) all steps of a group: micro-batches are one pass. What runs in
    backward is DDP's own: two of its buckets can be as large as each other. Without any such the
    program averages by itself, and once.
    """
    found = np.zeros(len(rows), dtype=np.bool_)
    passes = _first_passes(run)
    at = _behind_passes(rows, passes)
    at = at[~np.isin(rows.ints("operation")[at], _of_layers(run))]
    if not at.size:
        return found
    floats = at[rows.coded("dtype").where(is_floating)[at]]
    for some, of_type in ((at, True), (floats, False)):
        its = rows.take(some)
        kind = group_and_type(its) if of_type else codes(its.coded("communicator"))
        size = its.ints("size_bytes") if of_type else elements(its)
        again = _second_half(its, _forward(its, passes), kind, size)
        if again.any():
            found[some[again & _behind_own(run, its, passes, kind)]] = True
    return found


def averaged_in_other_pieces(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` are all_reduces of as many elements as those before them.

    In nearly all steps of a group that no DDP reduces in: all of its all_reduces of one float type,
    the one half in other pieces than the other, as buckets and then each parameter. What
    micro-batches reduce, or layers in forward and backward, has the same pieces.
    """
    found = np.zeros(len(rows), dtype=np.bool_)
    is_float = rows.coded("dtype").where(is_floating)
    known = rows.coded("op").being("all_reduce") & is_float & (rows.ints("step") != NULL)
    at = np.flatnonzero(known)
    if not at.size or len(_first_passes(run)):
        return found
    its = rows.take(at[np.lexsort((rows.ints("order")[at], rows.ints("rank")[at]))])
    size, kind = elements(its), group_and_type(its)
    between = codes(its.ints("rank"), kind, its.ints("step"))
    so_far, count = _cumulated(between, size), int(between.max()) + 1
    whole = sums(between, size, count)
    second = 2 * so_far > whole[between]
    ends_half = np.bincount(between, 2 * so_far == whole[between]) > 0
    squares = np.where(second, 1.0, -1.0) * size.astype(np.float64) ** 2
    again = ends_half & (np.bincount(between, squares) != 0) & (whole >= 2 * _LEAST)
    of_kind = kind[first_rows(between)]
    often = np.bincount(of_kind, again) / np.bincount(of_kind)
    mine = second & again[between] & (often >= _ALWAYS)[kind]
    return np.isin(rows.ints("operation"), its.ints("operation")[mine])


def _of_layers(run: Measures) -> Int64:
    """The operations that layers call in backward, and wait for, where DDP's are asynchronous."""
    operation = matched(run).waits.ints("operation")
    asynchronous = run.rows("collectives").ints("asynchronous")
    own = np.isin(operation, in_backward(run))
    does_not_wait = bool((asynchronous[own] == 1).any())
    found: Int64 = operation[own & (asynchronous == 0) & does_not_wait]
    return found


def _second_half(its: Rows, forward: Int64, kind: Int64, size: Int64) -> Bool:
    """Which of a rank's rows of one kind are behind half of what it reduces from pass to pass."""
    rank = its.ints("rank")
    between = codes(rank, kind, forward)
    whole = sums(between, size, int(between.max(initial=-1)) + 1)[between]
    so_far = _cumulated(between, size)
    ends_half = (np.bincount(between, 2 * so_far == whole) > 0)[between]
    last = most(rank, forward, int(rank.max(initial=-1)) + 1)[rank]
    counts = ends_half | (last <= 0) | (forward < last)  # else it is where the window ends
    often = np.bincount(kind, counts & ends_half) / np.maximum(np.bincount(kind, counts), 1)
    second: Bool = ends_half & (often >= _ALWAYS)[kind] & (2 * so_far > whole)
    return second & its.coded("dtype").known


def _behind_own(run: Measures, its: Rows, passes: Rows, kind: Int64) -> Bool:
    """Which are none that DDP calls in backward, but of a rank, kind and pass that has some."""
    own = np.isin(its.ints("operation"), in_backward(run))
    between = codes(its.ints("rank"), kind, _forward(its, passes))
    behind: Bool = ~own & (np.bincount(between, own) > 0)[between]
    return behind


def _first_passes(run: Measures) -> Rows:
    """The first DDP forward pass of each step of each rank."""
    steps = run.rows("steps")
    is_pass = steps.coded("label").being(DDP_FORWARD) & (steps.ints("step") != NULL)
    passes = steps.take(np.flatnonzero(is_pass)[np.argsort(steps.ints("start_ns")[is_pass])])
    return passes.take(first_rows(codes(passes.ints("rank"), passes.ints("step"))))


def _behind_passes(rows: Rows, passes: Rows) -> Int64:
    """The all_reduces behind a forward pass, by rank and order, in steps that have one."""
    names = ("rank", "step")
    step = codes(*(np.append(passes.ints(name), rows.ints(name)) for name in names))
    of_passes, of_rows = np.split(step, [len(passes)])
    known = np.isin(of_rows, of_passes)
    at = np.flatnonzero(known & rows.coded("op").being("all_reduce"))
    at = at[_forward(rows.take(at), passes) >= 0]
    rank, order = rows.ints("rank")[at], rows.ints("order")[at]
    behind: Int64 = at[np.lexsort((order, rank))]
    return behind


def _cumulated(number: Int64, values: Int64) -> Int64:
    """The sum of the values of its number up to each."""
    order = sorted_by(number)
    running = np.cumsum(values[order])
    total = sums(number, values, int(number.max(initial=-1)) + 1)
    found = np.empty_like(values)
    found[order] = running - (np.cumsum(total) - total)[number[order]]
    return found


def _forward(rows: Rows, passes: Rows) -> Int64:
    """The number of its rank's forward pass before each row, -1 before the first."""
    number: Int64 = np.full(len(rows), -1)
    rank, order = rows.ints("rank"), rows.ints("order")
    for (one,), its in rows_by(passes.ints("rank")).items():
        start, mine = np.sort(passes.ints("start_ns")[its]), rank == one
        number[mine] = np.searchsorted(start, order[mine], side="right") - 1
    return number
