"""What launch-gap promises where the recorder knows how long steps take that nobody records."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.diagnosis import Finding
from commtrace.metrics.run.unrecorded_steps import UNRECORDED_STEP, Pace, pace, slowed
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEP_US, EVERY_US, KERNEL_US, KERNELS = 2_100, 20, 5, 100
LEFT = 1.16  # ms: kernels one behind the other, 6 µs apart, and the operation


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def launching(manifest: dict[str, Any] | None) -> Tiny:
    """Steps of 2.1 ms in which two hosts launch 100 kernels of 5 µs, one each 20 µs, and wait."""
    run = Tiny(ranks=2, manifest=manifest)
    for step in range(8):
        for rank in range(2):
            begun = STEP_US * step
            run.step(rank, step, begun, STEP_US)
            for i in range(KERNELS):
                run.kernel(rank, begun + EVERY_US * i + 6, KERNEL_US, launch_ns=at(begun + 20 * i))
            run.collective(
                rank, "all_reduce", begun + 2_006, 44, size=1 << 20, launch_ns=at(begun + 2_000)
            )
            run.blocking_call(rank, "cudaDeviceSynchronize", begun + 2_010, 42)
    return run


def unrecorded(*steps_us: float) -> dict[str, Any]:
    times = [round(1e3 * its) for its in steps_us]
    return {"ranks": [{"rank": rank, "unrecorded_steps_ns": times} for rank in (0, 1)]}


def found(manifest: dict[str, Any] | None) -> list[Finding]:
    return list(diagnose(launching(manifest).trace(), select=["launch-gap"]).findings)


def test_without_such_steps_all_that_recording_adds_counts() -> None:
    (finding,) = found(None)
    assert finding.cost_ns / 8e6 == pytest.approx(2.1 - LEFT, rel=0.05)
    assert "time a step without the profiler first" in finding.advice


def test_of_an_unrecorded_step_hosts_are_as_much_faster_as_it_is_shorter() -> None:
    (finding,) = found(unrecorded(*[1_600] * 10))
    assert finding.cost_ns / 8e6 == pytest.approx(1.6 - LEFT, rel=0.1)
    assert "an unrecorded step, which takes 1.6 ms in the median, not 2.1 ms" in finding.advice
    (evidence,) = [its for its in finding.evidence if its.name == UNRECORDED_STEP]
    assert (evidence.value, evidence.unit) == (1_600_000, "ns")
    assert finding.replayed_step_ns == pytest.approx(1e6 * LEFT, rel=0.05)


def test_what_is_short_of_launches_only_while_it_is_recorded_is_no_finding() -> None:
    assert found(unrecorded(*[1_220] * 10)) == []


@pytest.mark.parametrize(
    "manifest",
    [
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": [1_000] * 4}]},
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": [-1] * 9}]},
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": ["1"] * 9}]},
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": [True] * 9}]},
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": [1] * 9}]},
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": [10**400] * 9}]},
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": [float("nan")] * 9}]},
        {"ranks": [0, {"rank": 0, "unrecorded_steps_ns": 5}]},
        {"ranks": 5},
    ],
)
def test_too_few_steps_and_what_nobody_recorded_tell_nothing(manifest: dict[str, Any]) -> None:
    assert pace(launching(manifest).trace()) is None


def test_a_burst_among_the_steps_is_not_their_pace() -> None:
    run = launching(unrecorded(*[1_300] * 9, 90_000)).trace()
    assert pace(run) == Pace(2_100_000, 1_300_000)


def test_recording_that_slows_a_run_is_noted() -> None:
    (note,) = slowed(launching(unrecorded(*[1_300] * 9)).trace())
    assert note.code == "slowed-by-recording"
    assert "made steps 1.6 times as long: 2.1 ms, and 1.3 ms behind them" in note.message
    assert slowed(launching(unrecorded(*[2_000] * 9)).trace()) == ()
