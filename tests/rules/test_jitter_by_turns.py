"""Who is late by turns, though one stalls once."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny


def steps(late: list[int], tail_us: int = 0) -> Measures:
    """In each step one of four ranks is 3 ms late; behind all rank 0 comes late to a barrier."""
    run = Tiny(ranks=4)
    for step, slow in enumerate(late):
        start = step * 10_000
        for rank in range(4):
            arrival = 5000 if rank == slow else 2000
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start, arrival - 10)
            run.collective(rank, "all_reduce", start + arrival, 9900 - arrival, size=1 << 26)
    end = len(late) * 10_000 + 100
    for rank in range(4):
        at = end + (tail_us if rank == 0 else 0)
        run.collective(rank, "barrier", at, end + tail_us + 100 - at)
    return run.trace()


@pytest.mark.parametrize("tail_us", [0, 600_000])
def test_one_long_wait_behind_all_steps_does_not_outvote_them(tail_us: int) -> None:
    run = steps([step % 4 for step in range(60)], tail_us)
    assert "jitter" in [one.rule for one in diagnose(run).findings]
