"""What launch-gap promises where the recorder knows how long steps take that nobody records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commtrace.causal.edits.own_pace import _factors
from commtrace.diagnosis import Finding
from commtrace.metrics.run.unrecorded_steps import ADDED, UNRECORDED_STEP, Pace, pace, slowed
from commtrace.reports.content.saving import saving
from commtrace.rules import diagnose, verdict
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.table import Rows

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
        {"ranks": [{"rank": 0, "unrecorded_steps_ns": [1_000]}]},
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


@pytest.mark.parametrize(
    ("short", "stalls", "told"),
    [(7, 4, False), (7, 1, True), (3, 0, False), (6, 1, False)],
    ids=["nearly half behind", "one of many", "none of few", "one of few"],
)
def test_steps_of_which_some_stall_tell_no_pace_by_their_medians(
    short: int, stalls: int, told: bool
) -> None:
    """Half of the recorded ones stall: who knows but a few behind does not know how many do."""
    run = launching(unrecorded(*[2_000] * short, *[9_000] * stalls)).trace()
    steps = run.rows("steps")
    stalled = np.where(steps.ints("step") % 2 == 0, 9_000_000, 2_100_000)
    run = replace(
        run, steps=Rows(steps.table, {**steps.columns, "duration_ns": stalled}, len(steps))
    )
    assert (pace(run) is not None) == told


def test_recording_that_slows_a_run_is_noted() -> None:
    (note,) = slowed(launching(unrecorded(*[1_300] * 9)).trace())
    assert note.code == "slowed-by-recording"
    assert "made steps 1.6 times as long: 2.1 ms, and 1.3 ms behind them" in note.message
    assert slowed(launching(unrecorded(*[2_000] * 9)).trace()) == ()


def half_recorded(manifest: dict[str, Any] | None) -> Tiny:
    """Two GPUs run 50 kernels of 20 µs a step; rank 0's host launches one each 21, rank 1's 41."""
    run = Tiny(ranks=2, manifest=manifest)
    last, end = 41 * 50, 41 * 50 + 50
    for step in range(8):
        begun = 2_110 * step
        for rank in range(2):
            run.step(rank, step, begun, 2_110)
            every = 41 if rank else 21
            for i in range(50):
                launched = begun + every * i
                run.kernel(rank, launched + 6, 20, launch_ns=at(launched))
            ready = every * 50
            run.collective(
                rank, "all_reduce", begun + ready + 6, end - ready, size=1 << 20,
                launch_ns=at(begun + ready),
            )  # fmt: skip
            run.blocking_call(rank, "cudaDeviceSynchronize", begun + ready + 10, last + 47 - ready)
    return run


def stragglers(manifest: dict[str, Any] | None) -> list[Finding]:
    return list(diagnose(half_recorded(manifest).trace(), select=["straggler"]).findings)


def test_a_host_is_late_by_what_it_is_late_when_nobody_records_it() -> None:
    """1 ms as recorded; unrecorded it launches each 29 µs, 9 more than a kernel takes, at most."""
    (sure,) = stragglers(None)
    assert (sure.ranks, sure.confidence) == ((1,), "high")
    assert 0.7 <= sure.cost_ns / 8e6 <= 1.0
    (doubted,) = stragglers(unrecorded(*[1_510] * 10))
    assert (doubted.ranks, doubted.confidence) == ((1,), "low")
    assert "recording slows hosts, and unrecorded it delays much less" in doubted.summary
    assert 0.1 <= doubted.cost_ns / 8e6 <= 0.45
    assert [its.value for its in doubted.evidence if its.name == UNRECORDED_STEP] == [1_510_000]


def test_where_gpus_are_busy_anyway_hosts_launch_at_their_usual_pace() -> None:
    """Steps are as long when nobody records them: nothing tells that hosts are no faster."""
    run = launching(unrecorded(*[2_095] * 10)).trace()
    assert _factors(run).launching == pytest.approx(1.0, abs=0.02)
    busy = Tiny(ranks=2, manifest=unrecorded(*[2_100] * 10))
    for step in range(8):
        for rank in range(2):
            begun = STEP_US * step
            busy.step(rank, step, begun, STEP_US)
            for i in range(KERNELS):
                launched = begun + 10 * i
                busy.kernel(rank, begun + 6 + 20 * i, 20, launch_ns=at(launched))
            busy.collective(
                rank, "all_reduce", begun + 2_006, 44, size=1 << 20, launch_ns=at(begun + 1_100)
            )
            busy.blocking_call(rank, "cudaDeviceSynchronize", begun + 1_110, 942)
    assert _factors(busy.trace()).launching == pytest.approx(0.7)


def test_steps_of_no_length_have_no_pace() -> None:
    run = Tiny(ranks=2, manifest=unrecorded(*[1_000] * 10))
    for step in range(10):
        for rank in range(2):
            run.step(rank, step, 2_000 * step, 0)
            run.kernel(rank, 2_000 * step + 6, 100, launch_ns=at(2_000 * step))
            run.collective(rank, "all_gather", 2_000 * step + 200, 100, size=1 << 20)
    diagnosis = diagnose(run.trace())
    assert not [why for why in diagnosis.skipped.values() if "please report" in why]


def test_a_saving_of_steps_that_recording_does_not_slow_is_called_of_no_others() -> None:
    (finding,) = found(unrecorded(*[2_600] * 10))
    assert UNRECORDED_STEP not in [its.name for its in finding.evidence]
    assert "steps took as long when nobody recorded them" in finding.advice


def test_first_steps_that_have_more_to_do_are_unlike_later_ones() -> None:
    """Kernels alone take 1.1 ms a step, later steps 0.5 ms: no host explains that."""
    (finding,) = found(unrecorded(*[500] * 10))
    assert UNRECORDED_STEP not in [its.name for its in finding.evidence]
    assert "later steps take 0.5 ms: record these (--start-step)" in finding.advice


@pytest.mark.parametrize(("later_us", "told"), [(3_000, True), (19_000, False)])
def test_stalls_of_first_steps_may_not_come_again(later_us: int, told: bool) -> None:
    """Hosts plan for 10 ms a step, and kernels take as long: later steps take less than both."""
    run = Tiny(ranks=2, manifest=unrecorded(*[later_us] * 10))
    for step in range(8):
        for rank in range(2):
            begun = 20_000 * step
            run.step(rank, step, begun, 20_000)
            run.kernel(rank, begun + 10_006, 9_900, launch_ns=at(begun + 10_000))
            called = at(begun + 10_010)
            run.collective(rank, "all_reduce", begun + 19_910, 44, size=1 << 20, launch_ns=called)
            run.blocking_call(rank, "cudaDeviceSynchronize", begun + 10_020, 9_940)
    findings = diagnose(run.trace(), select=["launch-gap"]).findings
    (finding,) = (its for its in findings if "stalls" in its.summary)
    assert ("later steps take 3 ms: record these (--start-step)" in finding.advice) == told


def test_a_saving_of_unrecorded_steps_is_a_share_of_these() -> None:
    run = launching(unrecorded(*[1_600] * 10)).trace()
    diagnosis = diagnose(run, select=["launch-gap"])
    (finding,) = diagnosis.findings
    share = round(100 * finding.cost_ns / (8 * 1_600_000))
    assert f"({share} % of unrecorded step time)" in (
        saving(finding, verdict(run, diagnosis)) or ""
    )


def reducing(run: Tiny, rank: int, begun: float, called: float) -> None:
    """To the end of a step of 21 ms."""
    run.collective(
        rank, "all_reduce", begun + called + 50, 20_950 - called, size=1 << 20, thread=1,
        asynchronous=0, stream=50, launch_ns=at(begun + called),
    )  # fmt: skip
    run.gap(rank, begun + called, 21_000 - called)


def computing(manifest: dict[str, Any] | None, *, asleep: bool) -> list[Finding]:
    """Steps of 21 ms on two CPUs: rank 1 computes, or sleeps, 10 ms longer than rank 0."""
    run = Tiny(2, backend="gloo", manifest=manifest)
    for step in range(8):
        begun = 21_000 * step
        for rank in range(2):
            works = 10_000 * (1 + rank * (not asleep))
            called = 10_000 * (1 + rank)
            run.step(rank, step, begun, 21_000)
            run.op(rank, begun, works)
            if called > works:
                run.gap(rank, begun + works, called - works)
            reducing(run, rank, begun, called)
    return list(diagnose(run.trace(), select=["straggler"]).findings)


@pytest.mark.parametrize(
    ("asleep", "step_us", "saved_ms"), [(False, 11_000, 5), (True, 16_000, 10), (False, 21_000, 10)]
)
def test_of_hosts_that_compute_recording_slows_what_operators_take(
    asleep: bool, step_us: int, saved_ms: float
) -> None:
    """Half of each operator's time is the recording's, but nothing of a sleep."""
    (finding,) = computing(unrecorded(*[step_us] * 10), asleep=asleep)
    assert finding.ranks == (1,)
    assert "recording slows hosts" not in finding.summary
    assert finding.cost_ns / 8e6 == pytest.approx(saved_ms, rel=0.05)
    told = [its.value for its in finding.evidence if its.name == UNRECORDED_STEP]
    assert told == ([1_000 * step_us] if step_us < 21_000 else [])


def looping(manifest: dict[str, Any], *, steps: bool) -> list[Finding]:
    """What takes both ranks 10 ms is one operator; rank 1 has 5000 more, of 2 µs each."""
    run = Tiny(2, backend="gloo", manifest=manifest)
    for step in range(8):
        begun = 21_000 * step
        for rank in range(2):
            called = 10_000 * (1 + rank)
            if steps:
                run.step(rank, step, begun, 21_000)
            run.op(rank, begun, 10_000, operators=1)
            if rank:
                run.op(rank, begun + 10_000, 10_000, operators=5_000, name="aten::unique_dim")
            reducing(run, rank, begun, called)
    return list(diagnose(run.trace(), select=["straggler"]).findings)


def test_recording_slows_many_operators_more_than_long_ones() -> None:
    """Half a microsecond each, 2.5 ms; of what is left all take a fifth less: 10 ms, and 7.5."""
    (finding,) = looping(unrecorded(*[15_000] * 10), steps=True)
    assert finding.cost_ns / 8e6 == pytest.approx(0.8 * 7.5, rel=0.05)


def test_without_steps_operators_are_as_much_faster_as_the_recorder_measured() -> None:
    ranks = [{"rank": rank, "recording_adds_ns": 1_200 + rank} for rank in (0, 1)]
    (finding,) = looping({"ranks": ranks}, steps=False)
    assert finding.cost_ns / 7e6 == pytest.approx(4, rel=0.05)  # when the first began is unknown
    assert "which takes about 0.73 of the time or less, as recording adds 1.2 µs" in finding.advice
    assert [its.value for its in finding.evidence if its.name == ADDED] == [1_200]


@pytest.mark.parametrize("adds_ns", [None, True, -1, 1.5, "1", 1 << 70])
def test_what_nobody_measured_tells_nothing(adds_ns: Any) -> None:
    (finding,) = looping({"ranks": [{"rank": 0, "recording_adds_ns": adds_ns}]}, steps=False)
    assert finding.cost_ns / 7e6 == pytest.approx(10, rel=0.05)
