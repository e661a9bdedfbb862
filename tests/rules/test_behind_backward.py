"""Gradients that a program reduces by itself when backward is over, on the stream that computes."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
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
