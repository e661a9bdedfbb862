"""The stage between the ends of a pipeline of three: who calls more, and who is really late."""

from __future__ import annotations

import pytest

from benchmarks.faults.loop import Loop
from commtrace.measures import Measures
from commtrace.rules import diagnose


def pipeline(base_us: float, stall_us: float) -> Measures:
    """Eight micro-batches forward and back; each host does something else, the middle one more."""
    loop = Loop(3, ranks=3, steps=6, host_leads=True)
    loop.spread = 0.002

    def one(stage: int, times: int, to: int) -> None:
        loop.stall(stage, base_us + (stall_us if stage == 1 else 0))
        for _ in range(4):
            loop.compute(stage, times * 150)
        if 0 <= to < 3:
            loop.message(stage, to, 100_000, stream=30 + to)

    for _ in range(loop.steps):
        with loop.step():
            for _ in range(8):
                for stage in range(3):
                    one(stage, 1, stage + 1)
            for _ in range(8):
                for stage in reversed(range(3)):
                    one(stage, 2, stage - 1)
    return loop.trace()


def test_a_middle_stage_that_only_calls_more_is_not_late() -> None:
    rules = [one.rule for one in diagnose(pipeline(600, 0)).findings]
    assert rules == ["pipeline-bubble", "exposed-communication"]


@pytest.mark.parametrize(("base_us", "stall_us"), [(600, 800), (0, 1500)])
def test_a_middle_stage_whose_host_stalls_is_late_for_sure(base_us: float, stall_us: float) -> None:
    first = diagnose(pipeline(base_us, stall_us)).findings[0]
    assert (first.rule, first.ranks, first.confidence) == ("late-sender", (1,), "high")
