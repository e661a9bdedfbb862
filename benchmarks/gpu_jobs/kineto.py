"""A simulated job as torch.profiler writes it: one file of Kineto's JSON for each rank."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_jobs.device import Work
from benchmarks.gpu_jobs.host import HostEvent
from benchmarks.gpu_jobs.rank import Rank
from benchmarks.gpu_jobs.simulator import Simulation

__all__ = ["write"]

BASE_NS = 1_740_000_000_000_000_000
START_US = 5_000_000.0
GPU = {
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85_017_755_648,
    "computeMajor": 9,
    "computeMinor": 0,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65_536,
    "warpSize": 32,
    "sharedMemPerBlock": 49_152,
    "numSms": 132,
    "sharedMemPerMultiprocessor": 233_472,
}

Event = dict[str, Any]
Clock = Callable[[float], float]


def write(job: Simulation, folder: Path, lost: Collection[int] = ()) -> None:
    """A file for each rank but those that are ``lost``."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in job.ranks:
        if rank.number not in lost:
            path = folder / f"rank{rank.number}.json.gz"
            with gzip.open(path, "wt", compresslevel=3) as file:
                json.dump(_document(job, rank), file)


def _document(job: Simulation, rank: Rank) -> dict[str, Any]:
    groups = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "pg_size": group.size,
            "ranks": list(group.ranks),
        }
        for group in job.groups
        if rank.number in group.ranks
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, **GPU} for device in range(job.gpus_per_host)],
        "cupti_version": 24,
        "cuda_runtime_version": 12060,
        "cuda_driver_version": 12060,
        "record_shapes": int(job.shapes),
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank.number,
            "world_size": len(job.ranks),
            "pg_count": len(groups),
            "pg_config": groups,
            "nccl_version": "2.21.5",
        },
        "host_name": f"node{rank.number // job.gpus_per_host:02d}",
        "trace_id": f"{rank.number:032X}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": _events(job, rank),
        "traceName": f"rank{rank.number}.json",
    }


def _events(job: Simulation, rank: Rank) -> list[Event]:
    device, process = rank.number % job.gpus_per_host, 40_007 + 100 * rank.number
    drift, off = job.clock_drift[rank.number], job.clock_us[rank.number]

    def clock(time: float) -> float:
        return round(START_US + time * (1 + drift) + off, 3)

    events = [
        *_on_the_host(rank.events, process, clock),
        *_on_the_device(rank.device.work, device, clock),
        *_steps_on_the_device(rank, device, clock),
    ]
    events.sort(key=lambda event: event["ts"])
    start, end = clock(-50), max(event["ts"] + event.get("dur", 0) for event in events)
    return [
        _metadata("process_name", process, name="python3.11"),
        _metadata("process_labels", process, labels="CPU"),
        _metadata("process_labels", device, labels=f"GPU {device}"),
        *events,
        {
            "ph": "X",
            "cat": "Trace",
            "ts": start,
            "dur": end - start,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        },
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": end + 20},
    ]


def _metadata(what: str, process: int, **args: str) -> Event:
    return {"name": what, "ph": "M", "ts": START_US, "pid": process, "tid": 0, "args": args}


def _on_the_host(its: list[HostEvent], process: int, clock: Clock) -> Iterator[Event]:
    for number, (name, category, start, us, thread, args) in enumerate(its, start=1):
        where = {"pid": process, "tid": process + 60 * thread}
        if category == "cuda_runtime":
            more = {"External id": args["correlation"], "cbid": 211}
        else:
            more = {"External id": 900_000 + number, "Record function id": 0, "Ev Idx": number}
        yield _complete(category, name, where, (clock(start), clock(start + us)), more | args)
        if category == "cuda_runtime" and ("Launch" in name or "Memcpy" in name):
            yield _arrow("s", args["correlation"], where, clock(start))


def _on_the_device(its: list[Work], device: int, clock: Clock) -> Iterator[Event]:
    for work in its:
        assert work.start is not None
        assert work.end is not None
        where, when = {"pid": device, "tid": work.stream}, (clock(work.start), clock(work.end))
        grid = [24 if work.meeting else 512, 1, 1]
        args = {
            "device": device,
            "context": 1,
            "stream": work.stream,
            "correlation": work.correlation,
            **({"grid": grid, "block": [256, 1, 1]} if work.category == "kernel" else {}),
            **work.args,
        }
        yield _complete(work.category, work.name, where, when, args)
        yield _arrow("f", work.correlation, where, when[0], bp="e")
        if work.annotation:
            yield _complete("gpu_user_annotation", work.annotation, where, when, {})


def _steps_on_the_device(rank: Rank, device: int, clock: Clock) -> Iterator[Event]:
    for name, works in rank.steps:
        ends: dict[int, list[float]] = defaultdict(list)
        for work in works:
            ends[work.stream] += [work.start or 0.0, work.end or 0.0]
        for stream, times in ends.items():
            where, when = {"pid": device, "tid": stream}, (clock(min(times)), clock(max(times)))
            yield _complete("gpu_user_annotation", name, where, when, {})


def _complete(
    category: str, name: str, where: Event, when: tuple[float, float], args: Event
) -> Event:
    start, end = when
    span = {"ts": start, "dur": round(end - start, 3)}
    return {"ph": "X", "cat": category, "name": name, **where, **span, "args": args}


def _arrow(phase: str, number: int, where: Event, time: float, **more: str) -> Event:
    both = {"cat": "ac2g", "name": "ac2g"}
    return {"ph": phase, "id": number, **where, "ts": time, **both, **more}
