"""All_gathers of logits: what is gathered goes into a softmax, a loss, or a metric, as it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, codes, least, rows_by
from commtrace.kernels import MATRIX, PRODUCT
from commtrace.metrics.rank.rows_of import rows_of_rank

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Coded, Rows

__all__ = ["gathered_logits"]

_LEAST_BYTES = 10_000_000  # keys and features of a batch, beside a loss, are fewer
_ALWAYS = 0.9  # of the gathers of a size
_SOFTMAX = re.compile(
    r"soft_?max|cross_?entropy|nll_?loss|arg_?max|top_?k|bincount|histc", re.IGNORECASE
)
_PRODUCT = re.compile(
    rf"{MATRIX}|Cijk_|gemv|matmul|linear_?cross|(?:^|_)mm(?:_|$)"
    rf"|^{PRODUCT}",
    re.IGNORECASE,
)


def gathered_logits(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` gather what the next softmax works on, or who counts hits.

    No compute starts beside them, and between them and the softmax no product of matrices: they are
    no parameters. Of (nearly) all gathers of their size, as a group's first rank has them: the
    others run the same behind them, and each one's kernels would be read.
    """
    rank, group, size = rows.ints("rank"), rows.coded("communicator"), rows.ints("size_bytes")
    gathers = rows.coded("op").being("all_gather") & (size >= _LEAST_BYTES)
    number = codes(group)
    first = least(number, rank, int(number.max(initial=-1)) + 1)
    asked = gathers & (rank == first[number])
    found = np.zeros(len(rows), dtype=np.bool_)
    for (one,), at in rows_by(rank[asked]).items():
        its = np.flatnonzero(asked)[at]
        found[its] = _before_softmax(run, one, rows.take(its))
    kind = codes(group, rows.coded("dtype"), size)
    share = np.bincount(kind, found) / np.maximum(np.bincount(kind, asked), 1)
    sure: Bool = gathers & (share[kind] >= _ALWAYS)
    return sure


def _before_softmax(run: Measures, rank: int, gathers: Rows) -> Bool:
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
    names, start = its.coded("name"), its.ints("start_ns")
    softmax, product = (_named(names, form) for form in (_SOFTMAX, _PRODUCT))
    begun, done = gathers.ints("start_ns"), gathers.ints("end_ns")
    first = np.searchsorted(start, done)
    alone = np.searchsorted(start, begun) == first
    there = _next(softmax, first, its) < _next(product, first, its)
    return np.asarray(alone & there)


def _named(names: Coded, form: re.Pattern[str]) -> Int64:
    return np.flatnonzero(names.where(lambda name: form.search(name) is not None))


def _next(which: Int64, first: Int64, its: Rows) -> Int64:
    """The first of some rows from there on; one past the last if there is none."""
    found: Int64 = np.append(which, len(its))[np.searchsorted(which, first)]
    return found
