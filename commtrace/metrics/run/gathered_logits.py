"""All_gathers whose result goes into a softmax, a loss or a metric as it is, or into a norm."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, codes, least, rows_by
from commtrace.kernels import MATRIX, PRODUCT
from commtrace.metrics.rank.rows_of import rows_of_rank

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Coded, Rows

__all__ = ["gathered_for_norms", "gathered_logits"]

_LEAST_BYTES = 4_000_000  # keys and features of a batch, beside a loss, are fewer
_ALWAYS = 0.9  # of the gathers of a size
_SOFTMAX = re.compile(
    r"soft_?max|cross_?entropy|nll_?loss|arg_?max|top_?k|bincount|histc", re.IGNORECASE
)
_NORM = re.compile(r"square|aten::pow|vector_norm|aten::norm|NormTwoOps|PowFunctor")
_MOVES = re.compile(
    r"cat|chunk|clone|contiguous|copy|detach|empty|flatten|narrow|reshape|select|slice|split|stack"
    r"|unbind|view|zeros",
    re.IGNORECASE,
)
_PRODUCT = re.compile(
    rf"{MATRIX}|Cijk_|gemv|matmul|linear_?cross|(?:^|_)mm(?:_|$)"
    rf"|^{PRODUCT}",
    re.IGNORECASE,
)


def gathered_logits(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` gather what the next softmax works on, or who counts hits.

    Between them and the softmax runs no product of matrices: they are no parameters.
    """

    def before_softmax(names: Coded, first: Int64) -> Bool:
        softmax, product = (
            _next(_named(names, form), first, names) for form in (_SOFTMAX, _PRODUCT)
        )
        return softmax < product

    return _going_into(run, rows, before_softmax)


def gathered_for_norms(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` gather what is squared, or normed, before all else but copies."""

    def before_norm(names: Coded, first: Int64) -> Bool:
        moves = names.where(lambda name: bool(_MOVES.search(name)) and not _NORM.search(name))
        at = _next(np.flatnonzero(~moves), first, names)
        return np.append(names.where(lambda name: bool(_NORM.search(name))), False)[at]

    return _going_into(run, rows, before_norm)


def _going_into(run: Measures, rows: Rows, goes: Callable[[Coded, Int64], Bool]) -> Bool:
    """Which gathers do, by the names of a rank's computing and the first behind each of them.

    No compute starts beside them. Of (nearly) all gathers of their size, as a group's first rank
    has them: the others run the same behind them, and each one's kernels would be read.
    """
    rank, group, size = rows.ints("rank"), rows.coded("communicator"), rows.ints("size_bytes")
    gathers = rows.coded("op").being("all_gather") & (size >= _LEAST_BYTES)
    number = codes(group)
    first = least(number, rank, int(number.max(initial=-1)) + 1)
    asked = gathers & (rank == first[number])
    found = np.zeros(len(rows), dtype=np.bool_)
    for (one,), at in rows_by(rank[asked]).items():
        its = np.flatnonzero(asked)[at]
        found[its] = _of_rank(run, one, rows.take(its), goes)
    kind = codes(group, rows.coded("dtype"), size)
    share = np.bincount(kind, found) / np.maximum(np.bincount(kind, asked), 1)
    sure: Bool = gathers & (share[kind] >= _ALWAYS)
    return sure


def _of_rank(run: Measures, rank: int, gathers: Rows, goes: Callable[[Coded, Int64], Bool]) -> Bool:
    on_cpu = bool(gathers.coded("device").being("cpu").all())
    its = rows_of_rank(run, "ops" if on_cpu else "kernels", rank)
    computes = its.coded("kind").being("compute")
    if on_cpu:  # on threads of its own gloo copies
        calling = its.ints("thread")[
            its.coded("name").where(lambda name: name.startswith("c10d::"))
        ]
        computes &= np.isin(its.ints("thread"), calling)
    its = its.take(np.flatnonzero(computes))
    its = its.take(np.argsort(its.ints("start_ns"), kind="stable"))
    start = its.ints("start_ns")
    first = np.searchsorted(start, gathers.ints("end_ns"))
    alone = np.searchsorted(start, gathers.ints("start_ns")) == first
    return np.asarray(alone & goes(its.coded("name"), first))


def _named(names: Coded, form: re.Pattern[str]) -> Int64:
    return np.flatnonzero(names.where(lambda name: form.search(name) is not None))


def _next(which: Int64, first: Int64, names: Coded) -> Int64:
    """The first of some rows from there on; one past the last if there is none."""
    found: Int64 = np.append(which, names.codes.size)[np.searchsorted(which, first)]
    return found
