"""Stages of short pipelines: who calls more, who is really late, and who works in turn."""

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


def two_stages(micro_batches: int) -> Measures:
    """The second stage computes half as long again as the first, forward and back."""
    loop = Loop(3, ranks=2, steps=6, host_leads=True)
    loop.spread = 0.002
    for _ in range(loop.steps):
        with loop.step():
            for _ in range(micro_batches):
                loop.compute(0, 4_000 / micro_batches)
                loop.message(0, 1, 100_000, stream=31)
                loop.compute(1, 6_000 / micro_batches)
            for _ in range(micro_batches):
                loop.compute(1, 12_000 / micro_batches)
                loop.message(1, 0, 100_000, stream=30)
                loop.compute(0, 8_000 / micro_batches)
    return loop.trace()


def test_stages_that_work_in_turn_lack_micro_batches_first() -> None:
    first, *rest = diagnose(two_stages(1)).findings
    assert (first.rule, first.confidence) == ("pipeline-bubble", "medium")
    assert not [one for one in rest if one.ranks == (1,) and one.confidence == "high"]


def test_the_heavier_of_stages_that_overlap_is_late() -> None:
    first = diagnose(two_stages(16)).findings[0]
    assert (first.rule, first.ranks) == ("straggler", (1,))
