"""Many small messages between two ranks on CPUs, which could be one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commtrace.diagnosis import Finding
from commtrace.metrics.run.message_rows import message_rows
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, MESSAGES, TOOK_US, WORK_US = 6, 20, 100, 3_000
CALLED_US = 5  # before it begins


def sending(
    *,
    messages: int = MESSAGES,
    size: int = 4_096,
    pause_us: int = 50,
    multiplies: bool = False,
    manifest: dict[str, Any] | None = None,
) -> Tiny:
    """In each step both ranks work for 3 ms, and one sends the other its tensors one by one."""
    run = Tiny(2, backend="gloo", manifest=manifest)
    each_us = TOOK_US + pause_us
    step_us = WORK_US + messages * each_us
    for step in range(STEPS):
        for rank in range(2):
            begun = step * step_us
            run.step(rank, step, begun, step_us - 1)
            run.op(rank, begun, WORK_US)
            for number in range(messages):
                at = begun + WORK_US + number * each_us
                more = {"asynchronous": 0, "thread": 1, "peer": 1 - rank, "stream": 1}
                op = ("send", "recv")[rank]
                run.collective(rank, op, at, TOOK_US, size=size, **more)
                kind = "aten::mm" if multiplies else "aten::copy_"
                run.op(rank, at + TOOK_US, pause_us, name=kind)
    return run


def found(run: Tiny) -> list[Finding]:
    return list(diagnose(run.trace(), select=["latency-bound"]).findings)


def test_tensors_sent_one_by_one_could_be_one_message() -> None:
    """The last is left, and takes 100 µs and 82 for its bytes at 1 GB/s."""
    (its,) = found(sending())
    assert its.cost_ns / STEPS / 1e3 == pytest.approx(20 * 150 - 182, rel=0.03)
    assert "120 sends of 4.1 kB each follow one another" in its.summary
    assert "1 in place of 20 in each step" in its.summary


@pytest.mark.parametrize(
    "other",
    [
        {"messages": 7},
        {"size": 1 << 20},
        {"pause_us": 1_100},
        {"multiplies": True},  # as for the next micro-batch of a pipeline
    ],
)
def test_few_large_or_rare_ones_and_those_of_micro_batches_could_not(other: Any) -> None:
    run = sending(**other)
    assert not message_rows(run.trace()).row.size
    assert not found(run)


def test_a_row_is_of_one_step_and_one_way() -> None:
    its = message_rows(sending().trace())
    assert np.bincount(its.row).tolist() == [MESSAGES] * STEPS
    assert (its.end_ns - its.arrival_ns == 1_000 * (TOOK_US + CALLED_US)).all()


@pytest.mark.parametrize("unrecorded_us", [5_000, 3_000, 2_000])
def test_of_unrecorded_steps_gloos_threads_are_faster_too(unrecorded_us: int) -> None:
    """Steps of 6 ms in 2 of which gloo's threads work; the last are too short for both."""
    times = [1_000 * unrecorded_us] * 9
    manifest = {"ranks": [{"rank": rank, "unrecorded_steps_ns": times} for rank in (0, 1)]}
    (its,) = found(sending(manifest=manifest))
    (recorded,) = found(sending())
    assert its.cost_ns < recorded.cost_ns
    assert 0.3 * unrecorded_us < its.cost_ns / STEPS / 1e3 < unrecorded_us
