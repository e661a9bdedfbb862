"""Hosts that take longer for the same operators than others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.metrics.run.host_speed import slower_operators
from commtrace.rules import diagnose
from commtrace.run import Run, load

RANKS, STEPS, STEP_US = 3, 6, 10_000.0
STREAM = 7
OPERATORS = ("aten::mm", "aten::add", "aten::native_layer_norm", "aten::gelu")


def event(category: str, name: str, at: float, long: float, **args: Any) -> dict[str, Any]:
    times = {"ts": at, "dur": long, "pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, **times, "args": args}


def kernel(name: str, at: float, long: float, number: int, **args: Any) -> dict[str, Any]:
    its = event("kernel", name, at, long, device=0, stream=STREAM, correlation=number, **args)
    return {**its, "pid": 0, "tid": STREAM}


def written(folder: Path, times: dict[str, float]) -> Run:
    """Each rank launches a row of short kernels; rank 1's operators take so many times as long."""
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]", "Group size": RANKS}
    about = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1 << 20}
    its = {**about, "Out msg nelems": 1 << 20, **group}
    for rank in range(RANKS):
        events, number = [], 0
        for step in range(STEPS):
            at = begin = STEP_US * step
            events.append(event("user_annotation", f"ProfilerStep#{step}", begin, STEP_US - 10))
            for turn in range(80):
                name = OPERATORS[turn % len(OPERATORS)]
                long = 25 * (times.get(name, 1.0) if rank == 1 else 1.0)
                number += 1
                events.append(event("cpu_op", name, at, long))
                launched = event("cuda_runtime", "cudaLaunchKernel", at + 5, 3, correlation=number)
                events += [launched, kernel("gemm", at + 20, 5, number)]
                at += long + 5
            number += 1
            launched = event("cuda_runtime", "cudaLaunchKernel", at, 3, correlation=number)
            long = begin + 9_500 - at - 20
            reduces = kernel("ncclDevKernel_AllReduce_Sum_f32", at + 20, long, number, **its)
            events += [launched, reduces]
        info = {"rank": rank, "world_size": RANKS, "backend": "nccl"}
        trace = {"distributedInfo": info, "baseTimeNanoseconds": 10**9, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return load(folder, cache=False)


def test_who_takes_longer_for_all_operators_has_a_slow_host(tmp_path: Path) -> None:
    run = written(tmp_path, dict.fromkeys(OPERATORS, 3.0))
    (tmp_path / "rank2.json").unlink()  # none is read again
    its = slower_operators(run.measures, (1,), (0, 2))
    assert its is not None
    assert (its.times, its.time_ns, its.usual_ns) == (pytest.approx(3), 75_000, 25_000)
    (finding,) = diagnose(run.measures, select=["straggler"]).findings
    assert finding.ranks == (1,)
    assert "3.00 times in the median" in finding.advice
    assert "the CPU's clock rate" in finding.advice


def test_one_operator_that_takes_longer_is_no_slow_host(tmp_path: Path) -> None:
    run = written(tmp_path, {OPERATORS[0]: 9.0})
    assert slower_operators(run.measures, (1,), (0, 2)) is None
    (finding,) = diagnose(run.measures, select=["straggler"]).findings
    assert "meanwhile the host runs aten::mm" in finding.advice
