"""Gradients that DDP all_reduces, of which the optimizer updates few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.diagnosis import Finding
from tests.written import COMMUNICATES, COMPUTES, event, found_on_two

STEPS, STEP_US, CALL_US, NUMBERS = 4, 10_000, 4_000, 1_000_000
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(
    number: int, update: list[tuple[str, Any]], passes: int, also: str, parts: int
) -> list[Any]:
    """Some passes of a model, the reduction of its gradients, and an update by some operators.

    Also another operation, of fifths of as much.
    """
    at, one = number * STEP_US, 10 * number
    events = [event("user_annotation", f"ProfilerStep#{number}", at, STEP_US)]
    for turn in range(passes):
        label = "DistributedDataParallel.forward"
        events.append(event("user_annotation", label, at + 10 + 100 * turn, 80))
    calls = [
        ("all_reduce", "allreduce", NUMBERS),
        *([(also, also, NUMBERS // 5)] * parts if also else []),
    ]
    for place, (op, name, size) in enumerate(calls, 1):
        launch, took = {"correlation": one + place}, CALL_US / len(calls)
        group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
        sizes = {"In msg nelems": size, "Out msg nelems": size, "dtype": "Float"}
        kernel = {"device": 0, "stream": COMMUNICATES, **launch, **group, **sizes}
        kind = KERNEL if op == "all_reduce" else KERNEL.replace("AllReduce_Sum_f32", "Broadcast")
        events += [
            event("cuda_runtime", "cudaLaunchKernel", at + 400 + 20 * place, 5, **launch),
            event("kernel", kind, at + 1_000 + place * took, took - 1, **kernel)
            | {"args": {**kernel, "Collective name": name}},
        ]
    events.append(event("user_annotation", "Optimizer.step#AdamW.step", at + 600, 300))
    for place, (name, shape) in enumerate(update):
        dims = {"Input Dims": [shape, []], "Input type": ["float", "Scalar"]}
        events.append(event("cpu_op", name, at + 610 + 20 * place, 10, **dims))
    launch = {"correlation": one + 9}
    kernel = {"device": 0, "stream": COMPUTES, **launch}
    events += [
        event("cuda_runtime", "cudaLaunchKernel", at + 700, 5, **launch),
        event("kernel", "gemm", at + 8_000, 1_000, **kernel),
    ]
    return events


def found(
    folder: Path, update: list[tuple[str, Any]], passes: int = 1, also: str = "", parts: int = 5
) -> list[Finding]:
    steps = (step(number, update, passes, also, parts) for number in range(STEPS))
    return found_on_two(folder, steps, "byte-inflation")


ADAPTERS = [("aten::mul_", [100, 100]), ("aten::addcdiv_", [100, 100])]


@pytest.mark.parametrize(
    "update", [ADAPTERS, [("aten::_foreach_addcdiv_", [[100, 50], [50, 100]])]]
)
def test_what_no_optimizer_updates_is_reduced_in_vain(
    tmp_path: Path, update: list[tuple[str, Any]]
) -> None:
    (finding,) = found(tmp_path, update)
    assert "gradients of 1,000,000 numbers at least" in finding.summary
    assert "updates 10,000 of them" in finding.summary
    assert finding.cost_ns == pytest.approx(STEPS * CALL_US * 1e3 * 0.99, rel=0.02)
    assert "requires_grad_(False)" in finding.advice


def test_each_of_several_passes_may_reduce_the_same(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, ADAPTERS, passes=2)
    assert "gradients of 500,000 numbers at least" in finding.summary


def test_buffers_that_are_sent_are_no_updates(tmp_path: Path) -> None:
    assert found(tmp_path, ADAPTERS, also="broadcast", parts=1)


@pytest.mark.parametrize(
    ("update", "other"),
    [
        ([("aten::addcdiv_", [1000, 600])], {}),  # more than half
        ([("aten::addcdiv_", [1000, 200])], {"passes": 4}),  # it may be reduced four times
        ([("aten::_foreach_addcdiv_", [])], {}),  # no shapes
        ([("aten::mul", [100, 100])], {}),  # not in place
        (ADAPTERS, {"also": "broadcast"}),  # each rank a part of what ranks update
        (ADAPTERS, {"passes": 0}),  # no DDP
    ],
)
def test_all_else_is_as_it_should_be(
    tmp_path: Path, update: list[tuple[str, Any]], other: dict[str, Any]
) -> None:
    assert not found(tmp_path, update, **other)
