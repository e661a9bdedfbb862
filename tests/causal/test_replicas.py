"""Replicas that iterate for unlike times before all meet, as those that generate texts do."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

MS, STEPS = 1_000_000, 6


def generating(more: int) -> Measures:
    """Two replicas of two ranks: 10 iterations of 1.1 ms, the second's so many more, in a step."""
    run = Tiny(4)
    run.groups |= {"tp0": (0, 1), "tp1": (2, 3)}
    for step in range(STEPS):
        begin = 40_000.0 * step
        met = begin + 1_100.0 * (10 + more) + 20
        for rank in range(4):
            run.step(rank, step, begin, 40_000)
            times = 10 + more * (rank > 1)
            for i in range(times):
                at = begin + 1_100.0 * i
                run.kernel(rank, at, 990)
                call = {"size": 8192, "group": f"tp{rank // 2}", "stream": 7}
                run.collective(rank, "all_reduce", at + 995, 100, **call)
            arrives = begin + 1_100.0 * times
            run.collective(rank, "all_reduce", arrives, met + 500 - arrives, size=1 << 20)
            run.kernel(rank, met + 505, 10_000)
    return run.trace()


def test_iterations_that_others_do_not_have_are_not_usual() -> None:
    findings = [its for its in diagnose(generating(8)).findings if its.rule == "straggler"]
    (finding,) = findings
    assert finding.ranks == (2, 3)
    assert finding.cost_ns == pytest.approx(STEPS * 8 * 1.0 * MS, rel=0.1)


def test_as_many_delay_nobody() -> None:
    assert not [its for its in diagnose(generating(0)).findings if its.rule == "straggler"]
