"""Medians as numpy has them, and quantiles of each of several numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commtrace.quantiles import median, medians, quantile, quantiles

NUMBER = st.integers(-(2**50), 2**50) | st.floats(-1e9, 1e9)


@given(st.lists(NUMBER, min_size=1, max_size=9))
def test_a_median_is_numpys(values: list[float]) -> None:
    np.testing.assert_equal(median(values), float(np.median(values)))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1), st.data())
def test_medians_along_an_axis_are_numpys(
    rows: int, columns: int, axis: int, data: st.DataObject
) -> None:
    number = st.floats(-1e9, 1e9) | st.just(np.nan)
    row = st.lists(number, min_size=columns, max_size=columns)
    values = np.array(data.draw(st.lists(row, min_size=rows, max_size=rows)))
    np.testing.assert_equal(medians(values, axis=axis), np.median(values, axis=axis))


def test_of_nothing_there_is_no_median() -> None:
    assert np.isnan(median([]))
    assert np.isnan(quantile([], 0.25))
    assert np.isnan(quantile([1.0, np.nan, 2.0], 0.25))
    assert np.isnan(medians(np.empty((0, 3)), axis=0)).tolist() == [True] * 3


def test_quantiles_of_each_number() -> None:
    number = np.array([0, 0, 0, 2, 2])
    values = np.array([30, 10, 20, 1, 2])
    np.testing.assert_equal(quantiles(number, values, 50, 3), [20.0, np.nan, 1.5])


def test_narrow_numbers_and_the_infinite() -> None:
    assert quantile(np.array([-100, 100], np.int8), 0.75) == 50
    assert quantile([True, False], 0.5) == 0.5
    assert quantile([np.inf, np.inf], 0.5) == np.inf


@given(st.lists(NUMBER, min_size=1, max_size=9), st.floats(0, 1))
def test_a_quantile_is_numpys(values: list[float], share: float) -> None:
    scale = max(map(abs, values))
    np.testing.assert_allclose(
        quantile(values, share), np.quantile(values, share), rtol=1e-9, atol=1e-9 * scale
    )
