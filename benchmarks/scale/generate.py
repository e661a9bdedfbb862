"""Traces of a job of many ranks: pipeline × data × tensor parallel, one late rank, two slow links.

All ranks are simulated together, an operation at a time: it ends when its last rank has come and
the data are there. So who waits for whom is as it would be, and the truth is known. Hosts launch a
step's work ahead of it and wait for its end. Each step ends with the norm of all gradients, as
training does: without a collective across its stages nothing would tie their clocks.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip

__all__ = ["STRAGGLER", "slow_pairs", "write_job"]

BASE_NS = 1_700_000_000_000_000_000
STRAGGLER = 5
"""The rank whose compute takes a fifth longer."""
SLOW_LINKS = ((0, 1), (2, 3))
"""Pipeline stages between which the first replica's messages take 15 times as long."""

_TENSOR, _STAGES = 8, 4
_COMPUTE_US, _TRANSFER_US = 300.0, 80.0
_PER_STEP = 50  # operations
_LATE, _SLOW = 1.2, 15.0
_HOST, _LAUNCHED_US, _EVERY_US = 4242, 40.0, 3.0
_WAIT, _WAITS = "cudaDeviceSynchronize", 1_000_000
_STREAM = 7  # of all: calls that are not asynchronous run on the caller's own
_BYTES = {"tp": 1 << 22, "dp": 1 << 26, "pp": 1 << 23}
_NORM_BYTES = 4

Times = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Operation:
    """One operation on all ranks, in µs; ``ranks`` are those that take part."""

    dimension: str
    op: str
    call: Times
    end: Times
    step: int
    size_bytes: int
    peer: np.ndarray[Any, Any] | None = None


def write_job(folder: Path, ranks: int, operations: int) -> Path:
    """One file per rank; what is already there is kept."""
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shape = (_STAGES, ranks // (_STAGES * _TENSOR), _TENSOR)
    job = list(_simulated(shape, operations))
    grid = np.arange(ranks).reshape(shape)
    for rank in range(ranks):
        text = json.dumps(_trace(job, grid, rank), separators=(",", ":"))
        with igzip.open(folder / f"rank{rank}.json.gz", "wb", compresslevel=1) as file:
            file.write(text.encode())
    (folder / "done").touch()
    return folder


def slow_pairs(ranks: int) -> list[tuple[int, int]]:
    """The ranks that send and receive over the slow links, of a job of so many."""
    stage = ranks // _STAGES
    return [(first * stage, last * stage) for first, last in SLOW_LINKS]


def _simulated(shape: tuple[int, int, int], operations: int) -> Any:
    now, chance = np.zeros(shape), np.random.default_rng(7)
    speed = np.ones(shape)
    speed.reshape(-1)[STRAGGLER] = _LATE
    for number in range(operations):
        step, place = divmod(number, _PER_STEP)
        now = now + (_LAUNCHED_US if place == 0 else 0.0)
        now = now + _COMPUTE_US * speed * (1 + 0.02 * chance.random(shape))
        if place == _PER_STEP - 1:
            end = np.broadcast_to(now.max(axis=0, keepdims=True) + _TRANSFER_US, shape)
            yield Operation("pp", "all_reduce", now, end, step, _NORM_BYTES)
            now = end.copy()
            continue
        if place % 10 == 9:
            yield from _messages(now, step, first=place // 10 % (shape[0] - 1))
            continue
        axis, dimension, op = (
            (1, "dp", "all_reduce") if place % 10 == 4 else (2, "tp", "all_reduce")
        )
        long = _TRANSFER_US * (4 if dimension == "dp" else 1)
        end = np.broadcast_to(now.max(axis=axis, keepdims=True) + long, shape)
        yield Operation(dimension, op, now, end, step, _BYTES[dimension])
        now = end.copy()


def _messages(now: Times, step: int, first: int) -> Any:
    """From one stage of the pipeline to the next; ``now`` is moved on."""
    last = first + 1
    call, long = now.copy(), np.full(now.shape[1:], _TRANSFER_US)
    if (first, last) in SLOW_LINKS:
        long[0, 0] *= _SLOW
    done = np.maximum(now[first], now[last]) + long
    now[first], now[last] = done, done
    peer = np.full(now.shape, -1)
    grid = np.arange(now.size).reshape(now.shape)
    peer[first], peer[last] = grid[last], grid[first]
    yield Operation("pp", "send", call, now.copy(), step, _BYTES["pp"], peer)


def _trace(job: list[Operation], grid: np.ndarray[Any, Any], rank: int) -> dict[str, Any]:
    stage, replica, part = (int(at[0]) for at in np.nonzero(grid == rank))
    groups = {
        "tp": grid[stage, replica],
        "dp": grid[stage, :, part],
        "pp": grid[:, replica, part],
    }
    names = {dimension: f"{dimension}{int(its[0])}" for dimension, its in groups.items()}
    events: list[dict[str, Any]] = []
    seq: Counter[tuple[str, bool]] = Counter()  # messages count by themselves
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    before, launches = 0.0, 0
    for number, each in enumerate(job):
        call, end = (float(times.reshape(-1)[rank]) for times in (each.call, each.end))
        peer = -1 if each.peer is None else int(each.peer.reshape(-1)[rank])
        if each.peer is not None and peer < 0:
            continue
        if each.step not in starts:
            starts[each.step], launches = before, 0
            before += _LAUNCHED_US
        launched = starts[each.step] + _EVERY_US * launches
        launches += 2
        gemm = f"gemm_{number % 7}"
        events += _work(gemm, launched, before, call - before, 2 * number, _STREAM, {})
        members = groups[each.dimension].tolist()
        op = each.op if peer < 0 else "send" if peer > rank else "recv"
        elements = each.size_bytes // 2
        args = {
            "Collective name": "allreduce" if op == "all_reduce" else op,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(members),
            "dtype": "BFloat16",
            "Process Group Name": names[each.dimension],
            "Process Group Description": f"mesh_{each.dimension}",
            "Process Group Ranks": str(members),
            "Seq": seq[each.dimension, peer < 0],
        }
        if peer >= 0:
            source, target = sorted((rank, peer))
            args |= {"Src Rank": source, "Dst Rank": target}
        seq[each.dimension, peer < 0] += 1
        kernel = (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if peer < 0 else "ncclDevKernel_SendRecv"
        )
        launched += _EVERY_US
        events += _work(kernel, launched, call, end - call, 2 * number + 1, _STREAM, args)
        ends[each.step] = before = end
    for step, start in starts.items():
        events.append(_event("user_annotation", f"ProfilerStep#{step}", start, ends[step] - start))
        waits = start + _EVERY_US * 2 * _PER_STEP
        awaited = {"correlation": _WAITS + step}
        events.append(_event("cuda_runtime", _WAIT, waits, ends[step] - waits, args=awaited))
    config = [
        {"pg_name": names[d], "pg_desc": f"mesh_{d}", "backend_config": "cuda:nccl",
         "pg_size": len(its), "ranks": its.tolist()}
        for d, its in groups.items()
    ]  # fmt: skip
    info = {"backend": "nccl", "rank": rank, "world_size": grid.size, "pg_config": config}
    return {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": info,
        "host_name": f"node{rank // _TENSOR}",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
    }


def _event(category: str, name: str, at: float, long: float, **more: Any) -> dict[str, Any]:
    ends = {"ts": round(at + 1000, 3), "dur": round(max(long, 0.1), 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": _HOST, "tid": _HOST, **ends, **more}


def _work(
    name: str,
    launched: float,
    at: float,
    long: float,
    number: int,
    stream: int,
    args: dict[str, Any],
) -> list[dict[str, Any]]:
    """A kernel, and its launch."""
    launch = _event(
        "cuda_runtime", "cudaLaunchKernel", launched, 2, args={"correlation": number + 1}
    )
    its = {"device": 0, "stream": stream, "correlation": number + 1, **args}
    kernel = _event("kernel", name, at, long, args=its)
    return [launch, {**kernel, "pid": 0, "tid": stream}]
