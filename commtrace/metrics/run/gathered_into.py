"""All_gathers whose result goes into a softmax, a loss or a metric as it is, or into a norm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int64, codes, least, rows_by
from commtrace.kernels import MATRIX, PRODUCT
from commtrace.metrics.rank.rows_of import rows_of_rank

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Coded, Rows

__all__ = ["GatheredInto", "gathered_into"]

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


class GatheredInto(NamedTuple):
    """Which rows of ``sequences`` gather what goes into a ``softmax`` or a ``norm``.

    Into a softmax, a loss, or who counts hits, with no product of matrices before it: they are no
    parameters. Into a norm: it is squared, or normed, before all else but copies.
    """

    softmax: Bool
    norm: Bool


def gathered_into(run: Measures, rows: Rows) -> GatheredInto:
    """Those beside which no compute starts.

    Of (nearly) all gathers of their size, as a group's first rank has them: the others run the same
    behind them, and each one's kernels would be read.
    """
    rank, group, size = rows.ints("rank"), rows.coded("communicator"), rows.ints("size_bytes")
    gathers = rows.coded("op").being("all_gather") & (size >= _LEAST_BYTES)
    number = codes(group)
    first = least(number, rank, int(number.max(initial=-1)) + 1)
    asked = gathers & (rank == first[number])
    found = np.zeros((len(GatheredInto._fields), len(rows)), dtype=np.bool_)
    for (one,), at in rows_by(rank[asked]).items():
        its = np.flatnonzero(asked)[at]
        found[:, its] = _of_rank(run, one, rows.take(its))
    kind = codes(group, rows.coded("dtype"), size)
    count = np.maximum(np.bincount(kind, asked), 1)
    return GatheredInto(
        *(gathers & ((np.bincount(kind, each) / count)[kind] >= _ALWAYS) for each in found)
    )


def _of_rank(run: Measures, rank: int, gathers: Rows) -> Bool:
    """What each of a rank's gathers goes into: a row of flags for each field of GatheredInto."""
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
    names = its.coded("name")
    return np.asarray(alone & np.stack((_into_softmax(names, first), _into_norm(names, first))))


def _into_softmax(names: Coded, first: Int64) -> Bool:
    softmax, product = (np.flatnonzero(_named(names, form)) for form in (_SOFTMAX, _PRODUCT))
    return np.asarray(_next(softmax, first, names) < _next(product, first, names))


def _into_norm(names: Coded, first: Int64) -> Bool:
    norms = _named(names, _NORM)
    computes = np.flatnonzero(norms | ~_named(names, _MOVES))
    return np.append(norms, False)[_next(computes, first, names)]


def _named(names: Coded, form: re.Pattern[str]) -> Bool:
    return names.where(lambda name: form.search(name) is not None)


def _next(which: Int64, first: Int64, names: Coded) -> Int64:
    """The first of some rows from there on; one past the last if there is none."""
    found: Int64 = np.append(which, names.codes.size)[np.searchsorted(which, first)]
    return found
