"""Which lateness is a rank's own; times by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from commtrace.causal.lateness import own_gaps
from commtrace.metrics.run.joined_rows import _caught


def test_waiting_elsewhere_since_the_last_operation_is_caught() -> None:
    """Between the two of communicator a it waited 7 in b; what it waits in a itself is no part."""
    rows = pd.DataFrame(
        {
            "operation": [1, 2, 3],
            "rank": 0,
            "communicator": ["a", "b", "a"],
            "pair": -1,
            "peer": pd.array([None] * 3, dtype="Int64"),
            "arrival_ns": [0, 20, 40],
            "end_ns": [10, 30, 60],
            "wait_ns": [5, 7, 11],
        }
    )
    assert _caught(rows).tolist() == [0, 0, 7]


@pytest.mark.parametrize(("first_ns", "own"), [(30, [1, 2, 3]), (31, [2, 3])])
def test_a_first_operation_that_is_far_later_than_the_others_is_left_out(
    first_ns: int, own: list[int]
) -> None:
    """Rank 1 comes 10 after rank 0; to the first, at most three times as late."""
    rows: list[dict[str, Any]] = [
        {"operation": number, "rank": rank, "last": rank == 1, "arrival_ns": 100 * number + late}
        for number, gap in ((1, first_ns), (2, 10), (3, 10))
        for rank, late in ((0, 0), (1, gap))
    ]
    whole = pd.DataFrame(rows).assign(communicator="a", pair=-1, device="cuda:0", caught_ns=0)
    gaps = own_gaps(whole.assign(start_ns=whole["arrival_ns"]))
    assert gaps["operation"].tolist() == own
    assert gaps["gap_ns"].tolist() == [first_ns, 10, 10][-len(own) :]
