"""Gradients that a program reduces by itself when backward is over, on the stream that computes."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.rules._backward import hideable
from commtrace.synthetic import BASE_NS, COMPUTE, Tiny

STEP_US = 2_760


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def averaging(*, backward_us: float, thread: int = 2, size: int = 1 << 24) -> Measures:
    """Each step: 500 µs of forward, backward, three all_reduces of 300 µs, 300 of an optimizer.

    PyTorch from 2.8 on runs an all_reduce that is waited for at once on the caller's stream.
    """
    run, step_us = Tiny(ranks=2), STEP_US - 1_000 + backward_us
    for step in range(6):
        for rank in range(2):
            begun = step_us * step
            run.step(rank, step, begun, step_us)
            run.kernel(rank, begun + 10, 500, launch_ns=at(begun))
            run.kernel(rank, begun + 512, backward_us, launch_ns=at(begun + 5), thread=thread)
            now = begun + 514 + backward_us
            for i in range(3):
                run.collective(
                    *(rank, "all_reduce", now, 300),
                    size=size,
                    stream=COMPUTE,
                    launch_ns=at(begun + 20 + 10 * i),
                )
                now += 302
            run.kernel(rank, now, 300, launch_ns=at(begun + 60))
            run.blocking_call(rank, "cudaDeviceSynchronize", begun + 70, step_us - 75)
    return run.trace()


def exposed(run: Measures) -> list[Finding]:
    return list(diagnose(run, select=["exposed-communication"]).findings)


@pytest.mark.parametrize(("backward_us", "saved_ms"), [(1_000, 0.9), (400, 0.4)])
def test_they_hide_behind_what_backward_computes(backward_us: float, saved_ms: float) -> None:
    (finding,) = exposed(averaging(backward_us=backward_us))
    assert finding.cost_ns / 6e6 == pytest.approx(saved_ms, rel=0.02)
    assert finding.confidence == "medium"
    assert "start one for each bucket of gradients as they are ready" in finding.advice


def test_a_norm_of_gradients_is_none() -> None:
    (finding,) = exposed(averaging(backward_us=1_000, size=4))
    assert (finding.cost_ns, finding.confidence) == (0, "low")
    assert "bucket of gradients" not in finding.advice


def test_without_a_backward_nobody_knows_what_they_could_hide_behind() -> None:
    (finding,) = exposed(averaging(backward_us=1_000, thread=1))
    assert (finding.cost_ns, finding.confidence) == (0, "low")
    assert "which runs on the stream of the compute behind it" in finding.summary


@pytest.mark.parametrize(("reducing", "passes"), [((2,), 1), ((0, 1, 2), 3)])
def test_gradients_hide_behind_the_passes_that_reduce_them(
    reducing: tuple[int, ...], passes: int
) -> None:
    """Of three micro-batches of 300 µs forward and 1 ms backward, behind which they reduce."""
    run = Tiny(ranks=2)
    for step in range(6):
        for rank in range(2):
            now = 6_000 * step
            run.step(rank, step, now, 6_000)
            for micro in range(3):
                called = at(6_000 * step + 50 * micro)
                run.step(rank, step, 6_000 * step + 50 * micro + 4, 20, label="## backward ##")
                run.kernel(rank, now + 1, 298, launch_ns=called)
                run.kernel(rank, now + 300, 998, launch_ns=called + 5_000, thread=2)
                if micro in reducing:
                    its = {"launch_ns": called + 9_000, "size": 1 << 24}
                    run.collective(rank, "all_reduce", now + 1_300, 600, **its)
                now += 1_950
    behind = hideable(run.trace())
    assert behind is not None
    assert behind.backward_ns == pytest.approx(6 * passes * 998e3, rel=0.01)
