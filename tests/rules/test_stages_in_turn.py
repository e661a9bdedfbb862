"""A pipeline whose first stage awaits each micro-batch's gradient before it sends the next."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.metrics.run.stages import stages
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, BATCHES, UNIT_US, SIZE = 6, 4, 1000, 1 << 20


def in_turn(first: int) -> Measures:
    """Forward and backward take a unit on each stage, and nothing runs at once."""
    run = Tiny(ranks=2)
    length = 4 * BATCHES * UNIT_US
    last = 1 - first
    for step in range(STEPS):
        for rank in (0, 1):
            run.step(rank, step, step * length, length)
        for batch in range(BATCHES):
            at = step * length + 4 * UNIT_US * batch
            run.kernel(first, at, UNIT_US - 20)
            there, back = at + UNIT_US - 10, at + 3 * UNIT_US - 10
            since = at + 10 if batch else at + 5
            run.collective(first, "send", there, 10, size=SIZE, peer=last)
            run.collective(last, "recv", since, there + 10 - since, size=SIZE, peer=first)
            run.kernel(last, at + UNIT_US, 2 * UNIT_US - 20)
            run.collective(last, "send", back, 10, size=SIZE, peer=first)
            run.collective(first, "recv", there + 20, back - there - 10, size=SIZE, peer=last)
            run.kernel(first, at + 3 * UNIT_US, UNIT_US - 20)
    return run.trace()


@pytest.mark.parametrize("first", [0, 1])
def test_working_at_once_is_what_it_lacks_not_more_micro_batches(first: int) -> None:
    (finding,) = diagnose(in_turn(first), select=["pipeline-bubble"]).findings
    assert finding.summary.endswith(
        "but the first sends none before the last one's gradient is back"
    )
    assert finding.advice.startswith("stages take turns: send several micro-batches forward")
    length_us = 4 * BATCHES * UNIT_US  # for 4 + 2 - 1 micro-batches of two units on each stage
    assert finding.cost_ns / STEPS / 1e3 == pytest.approx(length_us * (1 - 5 / 8), rel=0.02)


def test_who_sends_all_before_it_awaits_any_takes_no_turns() -> None:
    run = Tiny(ranks=2)
    length = 12 * UNIT_US
    for step in range(STEPS):
        start = step * length
        for rank in (0, 1):
            run.step(rank, step, start, length)
        for batch in range(BATCHES):
            sent = start + (batch + 1) * UNIT_US
            since = sent - UNIT_US + 12 if batch else start + 5
            run.kernel(0, sent - UNIT_US, UNIT_US - 20)
            run.collective(0, "send", sent, 10, size=SIZE, peer=1)
            run.collective(1, "recv", since, sent + 10 - since, size=SIZE, peer=0)
        for batch in range(BATCHES):
            back = start + (BATCHES + 2 + batch) * UNIT_US
            run.kernel(1, back - UNIT_US, UNIT_US - 20)
            run.collective(1, "send", back, 10, size=SIZE, peer=0)
            run.collective(0, "recv", back - UNIT_US + 12, UNIT_US - 2, size=SIZE, peer=1)
    for finding in diagnose(run.trace(), select=["pipeline-bubble"]).findings:
        assert "take turns" not in finding.advice


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("has_steps", [True, False])
def test_who_hands_on_at_once_is_no_stage(works: bool, has_steps: bool) -> None:
    """Three ranks exchange edges from first to last and back; or each works on what it received."""
    run, length = Tiny(ranks=3), 24 * UNIT_US
    for step in range(STEPS):
        now = step * length
        for rank in range(3) if has_steps else ():
            run.step(rank, step, now, length)
        for _ in range(3):
            for rank in range(3):
                run.kernel(rank, now, UNIT_US)
            now += UNIT_US + 10
            for sender, receiver in ((0, 1), (1, 2), (2, 1), (1, 0)):
                if works:
                    run.kernel(sender, now, UNIT_US)
                    now += UNIT_US + 10
                run.collective(sender, "send", now, 50, size=SIZE, peer=receiver)
                run.collective(receiver, "recv", now, 50, size=SIZE, peer=sender)
                now += 60
    assert stages(run.trace()) == ([[0], [1], [2]] if works else [])
