"""Operations that queue behind others on one thread of gloo."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

MS = 1_000_000
STEPS, STEP_US = 10, 20_000


def queued(
    *, work_us: float, op: str = "all_gather", asynchronous: int = 0, sleeps: bool = False
) -> Measures:
    """In each step 5 ms of a large all_reduce that only the step's end awaits; a gather behind."""
    run = Tiny(2, backend="gloo")
    for step in range(STEPS):
        for rank in range(2):
            at = step * STEP_US
            run.step(rank, step, at, STEP_US)

            def call(op: str, launch: float, start: float, end: float, **more: int) -> None:
                launched = {"launch_ns": BASE_NS + round(1e3 * launch), "thread": 1, "stream": 50}
                run.collective(rank, op, start, end - start, **launched, **more)  # noqa: B023

            call("all_reduce", at + 100, at + 150, at + 5_150, size=1 << 24, asynchronous=1)
            run.op(rank, at + 200, 50)
            behind = {"size": 1 << 10, "asynchronous": asynchronous}
            call(op, at + 300, at + 5_160, at + 5_360, **behind)
            run.gap(rank, at + 300, 5_070)
            if sleeps:
                run.op(rank, at + 5_370, 10)
            else:
                run.op(rank, at + 5_370, work_us)
            run.op(rank, at + 5_380 + work_us, STEP_US - work_us - 5_400)
    return run.trace()


def test_what_goes_first_saves_what_it_queued() -> None:
    (its,) = diagnose(queued(work_us=12_000), select=["head-of-line"]).findings
    assert its.cost_ns == its.cost_on_top_ns
    assert its.cost_ns == pytest.approx(STEPS * 4.81 * MS, rel=0.02)
    assert its.replayed_step_ns == pytest.approx((20 - 4.81) * MS, rel=0.02)
    assert its.place == "before the all_gather"
    assert not any("estimated" in one.name for one in its.evidence)


@pytest.mark.parametrize("sleeps", [False, True])
def test_of_one_kind_who_is_awaited_at_once_is_stuck_behind_who_is_not(sleeps: bool) -> None:
    run = queued(work_us=12_000, op="all_reduce", sleeps=sleeps)
    (its,) = diagnose(run, select=["head-of-line"]).findings
    assert "20 all_reduces ready to start wait" in its.summary
    assert its.cost_ns == pytest.approx(STEPS * 4.81 * MS, rel=0.02)


def test_of_one_kind_who_is_awaited_alike_is_in_its_place() -> None:
    run = queued(work_us=12_000, op="all_reduce", asynchronous=1)
    assert not diagnose(run, select=["head-of-line"]).findings


def shared_stream() -> Measures:
    """Two tp and two dp groups on one stream: every 1 ms a tp all_reduce, once 4 ms of dp's."""
    run = Tiny(4)
    run.groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    for step in range(STEPS):
        for rank in range(4):
            at = step * STEP_US
            run.step(rank, step, at, STEP_US)
            launch = count(BASE_NS + round(1e3 * at), 1000)
            dp, tp = ({"group": name, "stream": 20} for name in (f"dp{rank % 2}", f"tp{rank // 2}"))

            def call(group: dict[str, Any], start: float, took: float, size: int) -> None:
                known = {"size": size, "launch_ns": next(launch), **group}  # noqa: B023
                run.collective(rank, "all_reduce", start, took, **known)  # noqa: B023

            run.kernel(rank, at + 100, 900, launch_ns=next(launch))
            call(dp, at + 1_000, 4_000, 1 << 28)
            for begins in range(at + 5_001, at + 14_681, 1_210):
                call(tp, begins, 200, 1 << 20)
                run.kernel(rank, begins + 205, 1_000, launch_ns=next(launch))
            run.blocking_call(rank, "cudaDeviceSynchronize", at + 50, 14_650)
    return run.trace()


def test_groups_of_one_dimension_are_stuck_together() -> None:
    """Replayed one by one they save nothing: the others of the dimension stay where they are."""
    (its,) = diagnose(shared_stream(), select=["head-of-line"]).findings
    assert its.cost_ns == pytest.approx(STEPS * 4 * MS, rel=0.05)
    assert its.replayed_step_ns == pytest.approx((20 - 3.8) * MS, rel=0.02)
    assert "40 all_reduces of tp ready to start" in its.summary
    assert "behind all_reduce of dp on the same stream" in its.summary
    assert "give all_reduce of tp a stream of its own" in its.advice
