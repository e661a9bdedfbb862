"""What is saved of logits that are gathered: the gather, and what works on all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.written import event, found_on_two

STEPS, STEP_US, GATHER_US, LOSS_US = 4, 20_000, 3_000, 4_000
TOKENS, VOCABULARY = 1_024, 4_096
LOSSES = "aten::_log_softmax", "aten::_log_softmax_backward_data"


def launched(number: int, at: float, **of: Any) -> list[dict[str, Any]]:
    """A call, and the kernel that it launches: ``of`` has its name, start, time and arguments."""
    name, start, long = (of.pop(its) for its in ("name", "start", "long"))
    kernel = {"device": 0, "correlation": number, **of}
    return [
        event("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=number),
        event("kernel", name, start, long, **kernel),
    ]


def step(number: int, shapes: bool) -> list[dict[str, Any]]:
    """Logits are gathered, both losses compute on all of them, and a sum ends the step."""
    at, first = number * STEP_US, 10 * number + 1
    call = {"dtype": "Float", "Group size": 2}
    call |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    part = TOKENS * VOCABULARY // 2
    gather = {"Collective name": "_allgather_base", "In msg nelems": part, "stream": 20}
    gather |= {"Out msg nelems": 2 * part, "name": "ncclDevKernel_AllGather_RING_LL(...)"}
    total = {"Collective name": "allreduce", "In msg nelems": 256, "stream": 20}
    total |= {"Out msg nelems": 256, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)"}
    begin = at + 20
    events = [event("user_annotation", f"ProfilerStep#{number}", at, STEP_US - 1)]
    events += launched(first, at + 10, start=begin, long=GATHER_US, **gather, **call)
    begin += GATHER_US
    for place, name in enumerate(LOSSES):
        dims = {"Input Dims": [[TOKENS, VOCABULARY], [], []]} if shapes else {}
        kernel = {"name": f"softmax_warp_{place}", "stream": 7, "start": begin + 2}
        events.append(event("cpu_op", name, at + 100 + 50 * place, 40, **dims))
        its = {**kernel, "long": LOSS_US - 4}
        events += launched(first + 1 + place, at + 110 + 50 * place, **its)
        begin += LOSS_US
    end = {"start": begin + 2, "long": STEP_US - (begin + 4 - at)}
    return [*events, *launched(first + 9, at + 300, **end, **total, **call)]


@pytest.mark.parametrize("shapes", [True, False])
def test_with_shapes_half_of_the_losses_is_saved_too(tmp_path: Path, shapes: bool) -> None:
    steps = (step(number, shapes) for number in range(STEPS))
    (finding,) = found_on_two(tmp_path, steps, "redundant")
    less_us = GATHER_US + (LOSS_US * len(LOSSES) / 2 if shapes else 0)
    assert finding.cost_ns == pytest.approx(STEPS * 1e3 * less_us, rel=0.05)
