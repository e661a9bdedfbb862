"""Stages that wait for one another because a step's micro-batches are unlike."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

UNIT_US = 1000


def two_stages(units: tuple[int, ...], headers: bool = False, turns: bool = True) -> Measures:
    """Each step hands micro-batches of so many units from stage to stage, and back.

    In each step another is the first, or always the same.
    """
    run = Tiny(ranks=2)
    length = UNIT_US * (2 * sum(units) + 2 * max(units) + 2)
    for step in range(6):
        now = step * length + 10
        dealt = (*units[step:], *units[:step]) if turns else units
        for rank in (0, 1):
            run.step(rank, step, step * length, length)
        for source in (0, 1):
            free = [now, now]  # when either stage is done with what it has
            for count in dealt:
                took = UNIT_US * count
                run.kernel(source, free[source], took - 20)
                free[source] += took
                posted, ready = free[1 - source] + 2, free[source]
                at = max(posted, ready)
                for size in (64, 72, count << 18) if headers else (count << 18,):
                    run.collective(
                        source, "send", ready - 5, at + 5 - ready, size=size, peer=1 - source
                    )
                    run.collective(
                        1 - source, "recv", posted, at + 5 - posted, size=size, peer=source
                    )
                    ready, posted, at = at + 12, at + 12, at + 12
                run.kernel(1 - source, at, took - 20)
                free[1 - source], free[source] = at + took, max(free[source], at)
            now = max(free)
    return run.trace()


def test_the_largest_is_named_and_what_equal_ones_would_not_wait() -> None:
    run = two_stages((1, 1, 1, 1, 1, 1, 1, 17))
    (finding,) = diagnose(run, select=["pipeline-bubble"]).findings
    assert finding.summary.endswith("but the largest has 71 % of a step's bytes")
    assert finding.advice.startswith("make the micro-batches alike, each 12 %")
    step_us, waited_us = 84 * UNIT_US, 17 * UNIT_US  # of 9/8 of what is worked one is the bubble
    assert finding.cost_ns / 6e3 == pytest.approx(step_us - 9 / 8 * (step_us - waited_us), rel=0.02)


def test_unlike_messages_in_the_same_order_in_each_step_may_be_parts_of_one() -> None:
    run = two_stages((1, 1, 1, 1, 1, 1, 1, 17), turns=False)
    for finding in diagnose(run, select=["pipeline-bubble"]).findings:
        assert "the largest" not in finding.summary


@pytest.mark.parametrize("run", [two_stages((3,) * 4), two_stages((3,) * 4, headers=True)])
def test_of_equal_ones_more_are_advised(run: Measures) -> None:
    (finding,) = diagnose(run, select=["pipeline-bubble"]).findings
    assert "the largest" not in finding.summary
    assert "micro-batches instead of" in finding.advice
