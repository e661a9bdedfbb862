"""What a host runs while its GPU has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commtrace.metrics.rank.host_meanwhile import host_meanwhile
from commtrace.rules import diagnose
from commtrace.run import Run, load

HOST = 1


def event(category: str, name: str, at: float, long: float, **args: Any) -> dict[str, Any]:
    times = {"ts": at, "dur": long}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": HOST,
        "tid": HOST,
        **times,
        "args": args,
    }


def written(folder: Path, operator: str | None) -> Run:
    """12 kernels of 1 ms, 5 ms apart; 4 of these the host is in an operator that calls another."""
    events = [event("user_annotation", "ProfilerStep#1", 0, 72_000)]
    for number in range(1, 13):
        at = 6_000.0 * (number - 1)
        if operator:
            events.append(event("cpu_op", operator, at + 1_500, 4_000))
            events.append(event("cpu_op", "aten::as_strided", at + 2_000, 3_000))
        launch = {"correlation": number}
        events.append(event("cuda_runtime", "cudaLaunchKernel", at + 5_900, 10, **launch))
        kernel = event("kernel", "gemm", at + 6_000, 1_000, device=0, stream=7, **launch)
        events.append({**kernel, "pid": 0, "tid": 7})
    file = folder / "rank0.json"
    file.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    return load(file, cache=False)


def advice(run: Run) -> str:
    (finding,) = diagnose(run.measures, select=["launch-gap"]).findings
    return finding.advice


def test_operators_that_no_others_call_are_named_with_their_time(tmp_path: Path) -> None:
    run = written(tmp_path, "aten::unflatten_dense_tensors")
    kernels = run.measures.rows("kernels")
    end = kernels.ints("start_ns")[1:]
    begin = end - 5_000_000
    (tmp_path / "rank0.json").unlink()  # it is not read again
    its = host_meanwhile(run.measures, 0, (begin, end))
    assert its is not None
    assert its.operators == (("aten::unflatten_dense_tensors", 44_000_000),)
    assert its.none_ns == 11_000_000
    said = advice(run)
    assert "runs aten::unflatten_dense_tensors for 44 ms and no operator for 11 ms" in said
    assert "broadcast_buffers=False" in said


def test_compiling_is_named_with_what_helps(tmp_path: Path) -> None:
    said = advice(written(tmp_path, "entire_frame_compile (dynamo_timed)"))
    assert "runs entire_frame_compile (dynamo_timed) for 44 ms" in said
    assert "torch.compile compiles anew, as for inputs of new shapes" in said


def test_attention_of_new_shapes_is_planned_anew(tmp_path: Path) -> None:
    said = advice(written(tmp_path, "aten::scaled_dot_product_attention"))
    assert "cuDNN plans attention anew for each new shape" in said
    assert "enable_cudnn_sdp(False)" in said


def test_an_optimizer_that_takes_the_host_long_runs_on_it(tmp_path: Path) -> None:
    run = written(tmp_path, "aten::_fused_adamw_")
    assert "the optimizer runs on the CPU: leave optimizer states on the GPU" in advice(run)
    (finding,) = diagnose(run.measures, select=["launch-gap"]).findings
    assert finding.spares_memory


def test_without_operators_it_is_left_open(tmp_path: Path) -> None:
    run = written(tmp_path, None)
    assert "look at what the host does meanwhile: loading data" in advice(run)
    nothing = np.empty(0, np.int64)
    assert host_meanwhile(run.measures, 0, (nothing, nothing)) is None


@pytest.mark.parametrize(("long", "slow"), [(24.0, True), (4.0, False)])
def test_a_host_that_takes_long_for_what_moves_nothing_is_slow(
    long: float, slow: bool, tmp_path: Path
) -> None:
    events = [event("user_annotation", "ProfilerStep#1", 0, 12_100)]
    for number in range(1, 121):
        at = 100.0 * (number - 1)
        launch = {"correlation": number}
        events.append(event("cpu_op", "aten::as_strided", at, long))
        events.append(event("cpu_op", "aten::mm", at + 50, 30))
        events.append(event("cuda_runtime", "cudaLaunchKernel", at + 70, 5, **launch))
        kernel = event("kernel", "gemm", at + 80, 20, device=0, stream=7, **launch)
        events.append({**kernel, "pid": 0, "tid": 7})
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    said = advice(load(file, cache=False))
    assert ("aten::as_strided, which moves nothing, takes the host 24" in said) == slow
    assert ("in the gaps the host runs aten::mm" in said) != slow
