"""Garbage that ranks collect in turn holds up all of them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEPS, LENGTH_US, COLLECTS_US = 12, 11_400, 900


def collecting(*who: Collection[int]) -> Measures:
    """10 ms of work, then 0.9 ms in which some collect, and an all_reduce; ``who`` by step."""
    run = Tiny(2, backend="gloo")
    for step in range(STEPS):
        start = step * LENGTH_US
        for rank in (0, 1):
            call = start + 10_000 + COLLECTS_US * (rank in who[step % len(who)])
            end = start + LENGTH_US
            run.step(rank, step, start, LENGTH_US)
            run.op(rank, start, 10_000)
            run.gap(rank, start + 10_000, end - start - 10_000)
            if call > start + 10_000:
                label = "commtrace::garbage-collection"
                run.step(rank, step, start + 10_000, COLLECTS_US, label)
            run.collective(
                *(rank, "all_reduce", call, end - call),
                size=1 << 20,
                step=step,
                asynchronous=0,
                thread=1,
                stream=50,
                launch_ns=BASE_NS + call * 1000,
            )
    return run.trace()


def test_what_they_collect_in_turn_is_named_and_saved() -> None:
    """Half of it, 4 %, would be saved if both did it in the same steps."""
    (its,) = (its for its in diagnose(collecting({0}, {1})).findings if its.rule == "jitter")
    assert its.summary.startswith("ranks take turns collecting garbage: each step would be 0.9 ms")
    assert "gc.freeze()" in its.advice
    assert its.cost_ns == pytest.approx(STEPS * COLLECTS_US * 1e3, rel=0.05)


def test_what_all_collect_in_the_same_steps_is_nobodys_turn() -> None:
    assert "jitter" not in {its.rule for its in diagnose(collecting({0, 1}, ())).findings}
