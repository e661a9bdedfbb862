"""Student's t, held against published tables."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from commtrace.causal.chance import above_zero

# Degrees of freedom, t, one-sided p: the usual table of critical values.
TABLE = [
    (1, 6.314, 0.05),
    (1, 31.821, 0.01),
    (2, 2.920, 0.05),
    (2, 6.965, 0.01),
    (3, 4.541, 0.01),
    (4, 2.132, 0.05),
    (5, 3.365, 0.01),
    (7, 2.998, 0.01),
    (10, 1.812, 0.05),
    (30, 2.457, 0.01),
]


@pytest.mark.parametrize(("freedom", "t", "p"), TABLE)
def test_the_table_of_critical_values(freedom: int, t: float, p: float) -> None:
    n = freedom + 1
    values = np.linspace(-1, 1, n)
    values += t * values.std(ddof=1) / sqrt(n)
    assert above_zero(values) == pytest.approx(p, rel=2e-3)
    assert above_zero(-values) == pytest.approx(1 - p, rel=2e-3)


def test_what_has_no_scatter_or_no_second_is_sure_or_unknown() -> None:
    assert above_zero(np.ones(3)) == 0
    assert above_zero(np.zeros(3)) == 1
    assert above_zero(np.ones(1)) == 1
