"""Which lateness is a rank's own; times by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from commtrace.causal.lateness import late_ranks, own_gaps
from commtrace.metrics.run.joined_rows import _inherited_ns
from commtrace.synthetic import Tiny


def test_waiting_elsewhere_since_the_last_operation_is_inherited() -> None:
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
    assert _inherited_ns(rows).tolist() == [0, 0, 7]


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
    whole = pd.DataFrame(rows).assign(communicator="a", pair=-1, device="cuda:0", inherited_ns=0)
    gaps = own_gaps(whole.assign(start_ns=whole["arrival_ns"]))
    assert gaps["operation"].tolist() == own
    assert gaps["gap_ns"].tolist() == [first_ns, 10, 10][-len(own) :]


@pytest.mark.parametrize(("leads_us", "late"), [(20_000, []), (500, [1])])
def test_who_is_often_last_but_leads_no_step_is_not_to_blame(
    leads_us: float, late: list[int]
) -> None:
    """Rank 1 is last in nine of ten operations, by 0.5 ms; one of the others in the tenth."""
    run = Tiny(ranks=4)
    for step in range(12):
        start = step * 100_000
        leader = (0, 2, 3)[step % 3]
        for rank in range(4):
            run.step(rank, step, start, 100_000)
            for i in range(10):
                behind = (500 if rank == 1 else 0) if i else leads_us * (rank == leader)
                at = start + 30_000 * (i > 0) + 5_000 * i
                run.collective(
                    rank,
                    "all_reduce",
                    at + behind,
                    25_000 - behind if i == 0 else 2_000 - behind,
                    size=1 << 20,
                )
    assert [one.rank for one in late_ranks(run.trace(), 10)] == late
