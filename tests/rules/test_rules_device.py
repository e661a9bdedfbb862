"""Why a device computes nothing: exposed communication and late launches, edge by edge."""

from __future__ import annotations

import pytest

from commtrace.rules import diagnose
from commtrace.rules._tiny import BASE_NS, Tiny
from commtrace.schema import Diagnosis, Finding
from commtrace.trace import Trace


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def found(trace: Trace, rule: str) -> list[Finding]:
    return list(diagnose(trace, select=[rule]).findings)


def number(finding: Finding, name: str) -> float:
    (value,) = (one.value for one in finding.evidence if one.name == name)
    return value


# exposed-communication


def in_turn(compute: int, *, reduced: int = 400, launched: int = 10, **told: object) -> Tiny:
    """Ten times 100 µs of compute, an all_reduce, and compute from ``compute`` µs on."""
    run = Tiny()
    for i in range(10):
        start = 1000 * i
        run.kernel(0, start, 100)
        if told:
            run.collective(0, "all_reduce", start + 100, reduced, launch_ns=at(start + 5), **told)
        run.kernel(0, start + compute, 300, launch_ns=at(start + launched))
    return run


def test_operations_that_are_untold_count_in_what_is_exposed() -> None:
    run = in_turn(500)
    for i in range(10):
        run.collective(0, "all_reduce", 1000 * i + 100, 300, size=1 << 20)
        run.collective(0, None, 1000 * i + 400, 100, name="ncclDevKernel_Generic")  # type: ignore[arg-type]
    (finding,) = found(run.trace(), "exposed-communication")
    assert number(finding, "share of all_reduce in what is exposed") == pytest.approx(75)


def test_what_a_stream_waits_for_at_once_is_to_be_started_asynchronously() -> None:
    (finding,) = found(in_turn(500, size=1 << 20).trace(), "exposed-communication")
    assert finding.advice.startswith("start all_reduce asynchronously")


@pytest.mark.parametrize("told", [{"asynchronous": 1}, {"asynchronous": None}])
def test_what_is_asynchronous_already_is_not_advised_again(told: dict[str, int | None]) -> None:
    """It runs beside compute that was launched later, or the trace says so."""
    compute = 500 if told["asynchronous"] else 450
    (finding,) = found(in_turn(compute, size=1 << 20, **told).trace(), "exposed-communication")
    assert finding.advice.startswith("all_reduce runs asynchronously already")


def test_only_the_calls_that_are_not_asynchronous_are_advised() -> None:
    run = in_turn(500, size=1 << 20, asynchronous=1)
    for row in run._collectives[:3]:
        row["asynchronous"] = 0
    (finding,) = found(run.trace(), "exposed-communication")
    assert "start the 3 of 10 all_reduce that hold up their device" in finding.advice


def of_late_launches(*, launched: int) -> Diagnosis:
    """All_reduces that outlast the compute beside them, and the next, launched then, or late."""
    run = in_turn(500, launched=launched, size=1 << 20, asynchronous=1)
    limits = {"launch-gap": {"min_gaps": 5}}
    for i in range(10):
        for gap in range(10):
            start = 1000 * i + 805 + 19 * gap
            run.kernel(0, start, 1, launch_ns=at(start - 2))
    return diagnose(run.trace(), select=["exposed-communication", "launch-gap"], thresholds=limits)


@pytest.mark.parametrize(("launched", "cause"), [(490, "launch-gap"), (10, None)])
def test_compute_that_is_launched_too_late_cannot_hide_anything(
    launched: int, cause: str | None
) -> None:
    findings = {one.rule: one for one in of_late_launches(launched=launched).findings}
    exposed = findings["exposed-communication"]
    assert exposed.explained_by == cause
    late = number(exposed, "of it before the next compute was launched")
    assert late == (10 * 390_000 if launched == 490 else 0)
