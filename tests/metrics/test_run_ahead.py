"""What streams run before the first work whose launch is known was launched before the trace."""

from __future__ import annotations

import numpy as np
import pytest

from commtrace.metrics.rank.run_ahead import launched_before


@pytest.mark.parametrize(
    ("stream", "known", "before"),
    [
        ([0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0]),
        ([0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]),  # lost later on
        ([0, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0]),  # of the other stream no launch is known
        ([], [], []),
    ],
)
def test_of_each_stream(stream: list[int], known: list[int], before: list[int]) -> None:
    numbers, flags = np.asarray(stream, np.int64), np.asarray(known, np.bool_)
    found = launched_before(numbers, np.arange(numbers.size), flags)
    assert found.tolist() == [bool(its) for its in before]


def test_more_than_a_queue_holds_is_lost() -> None:
    known = np.arange(4_000) >= 3_000
    assert not launched_before(np.zeros(4_000, np.int64), np.arange(4_000), known).any()
