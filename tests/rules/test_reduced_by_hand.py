"""Gradients that a program reduces itself, after every micro-batch or once."""

from __future__ import annotations

from itertools import product

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.metrics.run.accumulation import repeated_in_accumulation
from commtrace.metrics.run.reduced_by_hand import placed_by_hand
from commtrace.metrics.run.sequences import sequences
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, MICRO, STEP_US = 4, 4, 40_000
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
SIZES = (4_000_000, 40)


def found(run: Measures) -> tuple[Finding, ...]:
    return diagnose(run, select=["redundant"]).findings


def on_cpus(
    reducing: tuple[int, ...] = (0, 1, 2, 3),
    updates: int = 1,
    size: int = SIZES[0],
    forward: bool = False,
    closures: bool = False,
) -> Measures:
    """Micro-batches compute for 2 + 3 ms; behind some two all_reduces of 2 ms, each divided then.

    At last so many optimizers step. Or the same bytes are summed in ``forward``, too, or passes are
    the ``closures`` of an optimizer's step.
    """
    run = Tiny(2, backend="gloo")
    call = {"thread": 1, "stream": 50, "asynchronous": 0}
    for step in range(STEPS):
        for rank in (0, 1):
            at: float = STEP_US * step
            run.step(rank, step, at, STEP_US)
            for micro in range(MICRO):
                run.op(rank, at, 2_000)
                if forward:
                    run.collective(rank, "all_reduce", at + 2_010, 400, size=size, **call)
                    run.gap(rank, at + 2_010, 400)
                run.op(rank, at + 2_500, 2_500, name=BACKWARD)
                at += 5_000
                for each in (size, SIZES[1]) if micro in reducing else ():
                    run.collective(rank, "all_reduce", at + 10, 2_000, size=each, **call)
                    run.gap(rank, at + 10, 2_000)
                    run.op(rank, at + 2_020, 50, name="aten::div_")
                    at += 2_080
            if closures:
                run.step(rank, step, STEP_US * step, at - STEP_US * step, "Optimizer.step#LBFGS")
            for one in range(updates):
                run.step(rank, step, at + 100 * one, 90, label="Optimizer.step#SGD.step")
    return run.trace()


def test_once_is_enough() -> None:
    (finding,) = found(on_cpus())
    assert finding.summary.startswith("gradients are reduced after every micro-batch: 24 ")
    assert finding.confidence == "low"
    assert "reduce once, behind the last micro-batch's backward" in finding.advice
    assert finding.cost_ns == pytest.approx(STEPS * 3 * 2 * 2e6, rel=0.05)


@pytest.mark.parametrize(
    "run",
    [
        on_cpus(reducing=(3,)),
        on_cpus(updates=2),  # of models with a pass each
        on_cpus(size=80_000),  # a metric
        on_cpus(forward=True),  # what layers sum
        on_cpus(closures=True, updates=0),
    ],
)
def test_what_is_reduced_once_or_is_no_gradient_is_needed(run: Measures) -> None:
    assert not found(run)


def first_stage(reducing: bool) -> Measures:
    """On GPUs, of a pipeline with two micro-batches on their way when its last backward begins.

    Forward, forward, and then backward twice, each behind a message.
    """
    run = Tiny(2)
    message = {"name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "stream": 9}
    for step, rank in product(range(STEPS), (0, 1)):
        begin = 20_000 * step
        run.step(rank, step, begin, 20_000)
        for at in (0, 3_000):
            run.kernel(rank, begin + at, 2_900)
        for number, at in enumerate((6_000, 12_000)):
            run.kernel(rank, begin + at, 900, kind="communication", **message)
            run.kernel(rank, begin + at + 1_000, 1_900, thread=2)
            if reducing or number:
                run.collective(rank, "all_reduce", begin + at + 3_000, 2_000, size=1 << 26)
        run.step(rank, step, begin + 19_000, 500, label="Optimizer.step#AdamW.step")
    return run.trace()


@pytest.mark.parametrize("reducing", [True, False])
def test_a_message_parts_the_last_passes_of_a_pipelines_stage(reducing: bool) -> None:
    run = first_stage(reducing)
    rows = sequences(run)
    needless = repeated_in_accumulation(rows, placed_by_hand(run, rows))
    assert len(needless) == 2 * STEPS * reducing
