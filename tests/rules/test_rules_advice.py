"""Advice that fits the program, and no other finding's."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from tests.gloo_loop import gloo_loop

STEPS = 12


def found(run: Measures, rule: str) -> Finding:
    (its,) = (its for its in diagnose(run).findings if its.rule == rule)
    return its


@pytest.mark.parametrize(("late_us", "gets_more"), [(0, True), (9_000, False)])
def test_a_root_that_is_late_elsewhere_is_given_no_more_work(
    late_us: float, gets_more: bool
) -> None:
    gathers = ("reduce", lambda rank, step: 3_000 + 3_000 * rank)
    sends = ("broadcast", lambda rank, step: 3_000 + late_us * (rank == 0))
    its = found(gloo_loop(gathers, sends, ranks=2, steps=STEPS, size=1 << 20), "early-root")
    assert its.ranks == (0,)
    assert ("larger share" in its.advice) == gets_more


@pytest.mark.parametrize(("count", "told"), [(20, True), (4, False)])
def test_many_operations_of_unknown_size_are_counted(count: int, told: bool) -> None:
    """Of known sizes ``latency-bound`` tells."""
    sums = [("all_reduce", lambda rank, step: 400.0)] * count
    its = found(gloo_loop(*sums, ranks=2, steps=STEPS), "exposed-communication")
    assert ("each step has 20 of them" in its.advice) == told
