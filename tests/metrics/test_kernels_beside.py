"""Kernels beside communication and alone: counts, medians and spreads are those of pandas."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from commtrace.metrics.rank.kernels_beside import KERNELS_BESIDE, kernels_beside
from commtrace.synthetic import Tiny

DURATIONS = st.lists(st.integers(1, 30), max_size=6)


@given(DURATIONS, DURATIONS)
def test_medians_and_spreads_are_those_of_pandas(beside: list[int], alone: list[int]) -> None:
    run = Tiny()
    run.collective(0, "all_reduce", 0, 1_000, size=1 << 20)
    for place, duration in enumerate(beside):
        run.kernel(0, 40 * place, duration)
    for place, duration in enumerate(alone):
        run.kernel(0, 2_000 + 40 * place, duration)
    found = KERNELS_BESIDE.rows(kernels_beside(run.trace(), 0)).frame()
    assert len(found) == bool(beside and alone)
    for row in found.to_dict("records"):
        assert row["touched"] == len(beside)
        assert row["touched_ns"] == 1_000 * sum(beside)
        lowest = pd.Series(beside).quantile(0.25)
        assert row["as_long"] == sum(duration >= lowest for duration in alone)
        for way, durations in (("beside", beside), ("alone", alone)):
            low, middle, high = (1e3 * pd.Series(durations)).quantile([0.25, 0.5, 0.75])
            assert row[f"count_{way}"] == len(durations)
            assert row[f"median_{way}"] == middle
            assert row[f"spread_{way}"] == 100 * (high - low) / middle
