"""Numbers for what is equal, and the rows of each."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from commtrace.arrays import (
    NULL,
    among,
    codes,
    distinct,
    first_rows,
    grouped,
    in_order,
    integers,
    numbered,
    rows_by,
    sorted_by,
)
from commtrace.table import Coded

VALUE = st.integers(-3, 3) | st.sampled_from([NULL, 2**62, 2**63 - 1])


def test_codes_count_in_the_order_of_appearance() -> None:
    names = Coded.of(["b", None, "b", "a", None])
    numbers = np.array([3, NULL, 3, 3, NULL])
    assert codes(names, numbers).tolist() == [0, 1, 0, 2, 1]
    assert codes(numbers).tolist() == [0, 1, 0, 0, 1]


def test_codes_of_many_large_columns_do_not_overflow() -> None:
    columns = [np.arange(5_000)] * 6
    assert codes(*columns).tolist() == list(range(5_000))


@given(st.lists(st.tuples(VALUE, VALUE, VALUE), max_size=8))
def test_numbers_are_in_the_order_of_the_columns(rows: list[tuple[int, int, int]]) -> None:
    columns = np.asarray(rows, np.int64).reshape(-1, 3).T
    number = numbered(*columns)
    assert number.tolist() == [sorted(set(rows)).index(row) for row in rows]
    assert first_rows(number).tolist() == [rows.index(row) for row in sorted(set(rows))]


def test_rows_by_leaves_out_what_is_missing() -> None:
    rank = np.array([1, 0, 1, 1])
    device = Coded.of(["cuda:0", "cpu", "cuda:0", None])
    rows = {key: at.tolist() for key, at in rows_by(rank, device).items()}
    assert rows == {(1, "cuda:0"): [0, 2], (0, "cpu"): [1]}
    assert rows_by(rank[:0], device.take(slice(0, 0))) == {}


def test_integers_of_any_column() -> None:
    assert integers(pd.Series([1, None], dtype="Int64")).tolist() == [1, NULL]
    assert integers(pd.Series([1.0, np.nan])).tolist() == [1, NULL]
    assert integers(pd.Series([1, None], dtype=object)).tolist() == [1, NULL]


def test_groups_are_in_the_order_of_their_values_and_what_is_missing_comes_last() -> None:
    names = Coded(np.array([1, -1, 0, 1], np.int32), ("b", "a"))
    size = np.array([7, 7, NULL, 3])
    assert [its.tolist() for its in grouped(names, size)] == [[2], [3], [0], [1]]
    assert grouped(size[:0]) == []


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**17) | st.integers(0, 2**40), max_size=20))
def test_rows_of_equal_numbers_stay_in_their_order(numbers: list[int]) -> None:
    expected = sorted(range(len(numbers)), key=numbers.__getitem__)
    assert sorted_by(np.asarray(numbers, np.int64)).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 2), VALUE), max_size=8), st.booleans())
def test_rows_in_the_order_of_several_columns(rows: list[tuple[int, int]], ordered: bool) -> None:
    rows = sorted(rows) if ordered else rows
    columns = np.asarray(rows, np.int64).reshape(-1, 2).T
    assert in_order(*columns).tolist() == sorted(range(len(rows)), key=rows.__getitem__)


def test_many_numbers_far_apart_are_numbered() -> None:
    far = np.random.default_rng(0).integers(0, 2**45, 70_000)
    assert (numbered(far) == np.unique(far, return_inverse=True)[1]).all()
    pairs = far % 300, far % 70_001
    expected = np.unique(np.stack(pairs), axis=1, return_inverse=True)[1]
    assert (numbered(*pairs) == expected).all()


@given(st.lists(VALUE, max_size=8))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    column = np.asarray(values, np.int64)
    assert distinct(column).tolist() == np.unique(column).tolist()


@given(st.lists(VALUE), st.lists(VALUE))
def test_what_is_among_some_is_what_numpy_finds(values: list[int], some: list[int]) -> None:
    found, its = (np.array(each, dtype=np.int64) for each in (values, some))
    assert among(found, its).tolist() == np.isin(found, its).tolist()
