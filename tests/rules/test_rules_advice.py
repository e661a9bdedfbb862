"""Advice that fits the program, and no other finding's."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEPS = 12


def found(run: Measures, rule: str) -> Finding:
    (its,) = (its for its in diagnose(run).findings if its.rule == rule)
    return its


def training(*operations: tuple[str, tuple[float, float]], size: int | None) -> Measures:
    """In each step such operations, and how long each rank works before each: root is rank 0."""
    run, at = Tiny(2, backend="gloo"), 0.0
    for step in range(STEPS):
        begin = at
        for op, work in operations:
            called = [at + its for its in work]
            end = max(called) + 500
            for rank, call in enumerate(called):
                run.op(rank, at, call - at)
                run.collective(
                    rank,
                    op,
                    call + 50,
                    end - call - 50,
                    size=size,
                    step=step,
                    asynchronous=0,
                    thread=1,
                    stream=50,
                    launch_ns=BASE_NS + round(call * 1e3),
                    root=None if op == "all_reduce" else 0,
                )
                run.gap(rank, call, end - call)
            at = end
        for rank in range(2):
            run.step(rank, step, begin, at - begin)
    return run.trace()


@pytest.mark.parametrize(("late_us", "gets_more"), [(0, True), (9_000, False)])
def test_a_root_that_is_late_elsewhere_is_given_no_more_work(
    late_us: float, gets_more: bool
) -> None:
    gathers, sends = ("reduce", (3_000, 6_000)), ("broadcast", (3_000 + late_us, 3_000))
    its = found(training(gathers, sends, size=1 << 20), "early-root")
    assert its.ranks == (0,)
    assert ("larger share" in its.advice) == gets_more


@pytest.mark.parametrize(("count", "told"), [(20, True), (4, False)])
def test_many_operations_of_unknown_size_are_counted(count: int, told: bool) -> None:
    """Of known sizes ``latency-bound`` tells."""
    its = found(training(*[("all_reduce", (400, 400))] * count, size=None), "exposed-communication")
    assert ("each step has 20 of them" in its.advice) == told
