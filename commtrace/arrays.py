"""Arrays as every floor names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "NULL",
    "Bool",
    "Float64",
    "Int32",
    "Int64",
    "Signed",
    "among",
    "codes",
    "distinct",
    "fewest",
    "first_rows",
    "grouped",
    "in_a_row",
    "in_order",
    "integers",
    "least",
    "most",
    "narrow",
    "nth",
    "numbered",
    "ranges",
    "rows_by",
    "rows_of_each",
    "sorted_by",
    "spread",
    "sums",
]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Signed = npt.NDArray[np.signedinteger[Any]]
"""Integers of any width."""

NULL = np.iinfo(np.int64).min
"""Stands for a missing integer while a column is still a numpy array."""
_FAR = 2**31
_MOST = 2**62  # apart: further, and differences overflow
_DIGIT_BITS = 16  # numbers of so many numpy sorts without comparing them
_FEW = 1 << 16  # so many numbers are faster looked up than sorted


def integers(column: pd.Series[Any]) -> Int64:
    """A column of integers as an array; what is missing is NULL."""
    if isinstance(column, np.ndarray):
        return column
    if column.dtype == np.int64:
        return column.to_numpy()
    values: Int64 = column.array.to_numpy(np.int64, na_value=NULL)  # faster than the Series'
    return values


def narrow(values: Int64) -> Int32 | Int64:
    """Integers in 32 bits, if they fit."""
    far = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    return values.astype(np.int32) if far < _FAR else values


def fewest(numbers: Signed) -> Signed:
    """Numbers from 0, or -1, in as few bytes as the highest needs."""
    return numbers.astype(np.min_scalar_type(-1 - int(numbers.max(initial=0))))


def codes(*columns: Any) -> Int64:
    """Numbers from 0 in the order of appearance, equal where all columns are: arrays or Coded.

    What is missing equals what is missing.
    """
    number = _numbered(map(_integers, columns))
    first = first_rows(number)
    if not (first[1:] < first[:-1]).any():  # they appear in their order
        return number
    order = sorted_by(first)
    turn = np.empty_like(order)
    turn[order] = np.arange(order.size)
    return turn[number]


def distinct(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Those that occur, each once, ascending: as ``np.unique``, which imports masked arrays."""
    ordered = np.ravel(values)
    if (ordered[1:] < ordered[:-1]).any():
        ordered = np.sort(ordered)
    first = np.ones(ordered.size, np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def among(values: npt.ArrayLike, some: npt.ArrayLike) -> Bool:
    """Which are among some: ``np.isin`` imports masked arrays for numbers that are far apart."""
    which, ordered = np.asarray(values), np.sort(some)
    if not ordered.size:
        return np.zeros(which.shape, np.bool_)
    found: Bool = ordered[np.searchsorted(ordered[:-1], which)] == which
    return found


def _integers(column: Any) -> Int64:
    """Integers that are equal where a column is."""
    values = np.asarray(getattr(column, "codes", column))
    if values.dtype.kind in "iub":
        return _close(values.astype(np.int64, copy=False))
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def numbered(*columns: Int64) -> Int64:
    """Numbers from 0, equal where all columns are, in their order: by the first column first."""
    return _numbered(iter(columns))


def _numbered(columns: Iterator[Int64]) -> Int64:
    """The same of columns that are made one after the other."""
    number, span = _above(next(columns))
    for column in columns:
        found, values = _above(column)
        if span * values > _looked_up(number):
            (number, span), (found, values) = _occurring(number, span), _occurring(found, values)
        number *= values
        number += found
        span *= values
        del found, column  # of many rows the last is much
    return _occurring(number, span)[0]


def _looked_up(numbers: Int64) -> int:
    """So many different numbers are faster looked up than sorted."""
    return max(_FEW, numbers.size)


def _above(column: Int64) -> tuple[Int64, int]:
    """Numbers from 0 in the order of the values, with gaps, and how many these are at most."""
    low = int(column.min(initial=np.iinfo(np.int64).max))
    span = int(column.max(initial=low)) - low + 1
    if span < _MOST:
        return np.subtract(column, low, dtype=np.int64), span
    values, number = np.unique(column, return_inverse=True)
    return number, values.size


def _occurring(number: Int64, span: int) -> tuple[Int64, int]:
    """The number of each among those that occur, and how many these are."""
    if span > _looked_up(number):
        order = sorted_by(number)
        rank = _running(np.diff(number[order], prepend=-1) != 0)
        found = np.empty_like(order)
        found[order] = rank
    else:
        occurs = np.zeros(span, dtype=np.bool_)
        occurs[number] = True
        rank = _running(occurs)
        found = rank[number]
    return found, int(rank[-1]) + 1


def _running(flags: Bool) -> Int64:
    """How many flags are set up to each, less one."""
    count: Int64 = np.cumsum(flags, dtype=np.int64)
    count -= 1
    return count


def _close(values: Int64) -> Int64:
    """What is missing as the integer below all others: so they are looked up, not sorted."""
    missing = values == NULL
    if not missing.any():
        return values
    below = int(values.min(initial=1, where=~missing)) - 1
    return np.where(missing, below, values)


def rows_by(*columns: Any) -> dict[tuple[Any, ...], Int64]:
    """The rows of each combination of values that occurs; what is missing is in none."""
    number = codes(*columns)
    order = sorted_by(number)
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    values = [_plain(column, order[first]) for column in columns]
    rows = np.split(order, first[1:])
    its = zip(zip(*values, strict=True), rows, strict=False)
    return {key: at for key, at in its if None not in key}


def grouped(*columns: Any) -> list[Int64]:
    """The rows of each combination of values that occurs, in the order of these.

    That of strings is their codes', and what is missing comes last.
    """
    number = numbered(*map(_missing_last, columns))
    return rows_of_each(number, np.arange(int(number.max()) + 1)) if number.size else []


def _missing_last(column: Any) -> Int64:
    """Integers in the order of a column's values."""
    values = np.asarray(getattr(column, "codes", column), np.int64)
    missing = values == (-1 if hasattr(column, "codes") else NULL)
    return np.where(missing, values.max(initial=-1) + 1, values) if missing.any() else values


def _plain(column: Any, rows: Int64) -> list[Any]:
    """Values of a column; None is missing."""
    if hasattr(column, "names"):
        decoded: list[Any] = column.take(rows).decoded()
        return decoded
    return [None if value == NULL else value for value in column[rows].tolist()]


def first_rows(number: Int64) -> Int64:
    """The first row of each number; they are all from 0 on."""
    rows = np.empty(int(number.max(initial=-1)) + 1, np.int64)  # one byte may hold no more
    rows[number[::-1]] = np.arange(number.size)[::-1]
    return rows


def sums(number: Int64, values: Int32 | Int64, count: int) -> Int64:
    """The exact sum of the values of each of so many numbers."""
    total = np.zeros(count, np.int64)
    np.add.at(total, number, values)
    return total


def least(number: Int64, values: Int64, count: int) -> Int64:
    """The smallest of the values of each of so many numbers; the largest integer of none."""
    found = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(found, number, values)
    return found


def most(number: Int64, values: Int64, count: int) -> Int64:
    """The largest of the values of each of so many numbers; NULL of none."""
    found = np.full(count, NULL)
    np.maximum.at(found, number, values)
    return found


def nth(code: Int64) -> Int64:
    """How many entries of the same code, from 0 on, come before each."""
    order = sorted_by(code)
    firsts = np.flatnonzero(np.diff(code[order], prepend=-1))
    place = np.arange(code.size) - np.repeat(firsts, np.diff(np.append(firsts, code.size)))
    found = np.empty(code.size, dtype=np.int64)
    found[order] = place
    return found


def ranges(first: Int32 | Int64, count: Int32 | Int64) -> Int64:
    """The numbers from each ``first`` on, ``count`` of them, one after the other."""
    begins = np.cumsum(count, dtype=np.int64) - count
    return np.repeat(first - begins, count) + np.arange(int(count.sum()))


def spread(count: int, most: int) -> Int64:
    """At most so many of so many places, evenly apart, the first and the last among them."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def rows_of_each(number: Int32 | Int64, numbers: Int32 | Int64) -> list[Int64]:
    """The rows of each of some numbers in order, from 0 on, which are all that occur."""
    order = sorted_by(number)
    return np.split(order, np.searchsorted(number[order], numbers[1:]))


def in_a_row(rows: Int64) -> slice | Int64:
    """A slice of all rows from the first to the last, if they are that: it takes no copies."""
    if not rows.size:
        return rows
    first, end = int(rows[0]), int(rows[-1]) + 1
    return slice(first, end) if end - first == rows.size else rows


def in_order(*columns: Int32 | Int64) -> Int64:
    """The rows by these columns, the first first, in their own order where all are equal."""
    equal = np.ones(max(columns[0].size - 1, 0), dtype=np.bool_)
    for column in columns:
        before, after = column[:-1], column[1:]
        if (equal & (before > after)).any():
            return np.lexsort(columns[::-1])
        equal &= before == after
    return np.arange(columns[0].size)  # as a reader leaves most


def sorted_by(number: Int32 | Int64) -> Int64:
    """The rows in the order of numbers from 0, in their own where these are equal."""
    if not (number[1:] < number[:-1]).any():
        return np.arange(number.size)
    order = np.argsort(number.astype(np.uint16), kind="stable")
    for bits in range(_DIGIT_BITS, int(number.max()).bit_length(), _DIGIT_BITS):
        digit = (number >> bits).astype(np.uint16)[order]
        if order.size < _FAR:  # of many rows both orders are much
            order = order.astype(np.int32)
        order = order[np.argsort(digit, kind="stable")]
    return order.astype(np.int64, copy=False)
