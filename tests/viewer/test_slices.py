"""Slices that overlap are drawn side by side, in as few lanes as will do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commtrace.viewer.slices import apart, nested

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=25)


def lanes_of(spans: list[tuple[int, int]], lane: np.ndarray) -> list[list[tuple[int, int]]]:  # type: ignore[type-arg]
    return [
        [span for span, its in zip(spans, lane.tolist(), strict=True) if its == number]
        for number in range(int(lane.max(initial=-1)) + 1)
    ]


@given(SPANS)
def test_slices_of_a_lane_are_apart(spans: list[tuple[int, int]]) -> None:
    ordered = sorted((start, start + length) for start, length in spans)
    start, end = (np.array([span[i] for span in ordered], dtype=np.int64) for i in (0, 1))
    lanes = lanes_of(ordered, apart(start, end))
    for lane in lanes:
        assert all(one[1] <= next_[0] for one, next_ in pairwise(lane))
    most = max((sum(s <= t < max(e, s + 1) for s, e in ordered) for t in start.tolist()), default=0)
    assert len(lanes) <= most


@given(SPANS)
def test_slices_of_a_lane_nest_or_are_apart(spans: list[tuple[int, int]]) -> None:
    ordered = sorted(
        ((start, start + length) for start, length in spans), key=lambda span: (span[0], -span[1])
    )
    start, end = (np.array([span[i] for span in ordered], dtype=np.int64) for i in (0, 1))
    for lane in lanes_of(ordered, nested(start, end)):
        open_: list[int] = []
        for since, until in lane:
            while open_ and open_[-1] <= since:
                open_.pop()
            assert not open_ or until <= open_[-1]
            open_.append(until)
