"""A trace written by hand, in Kineto's layout: one process that launches work on GPUs.

What the reconstructions of this folder have in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slim import HOST, write

PROCESS = 1000
LAUNCH_NS, DELAY_NS, PAUSE_NS = 10_000, 8_000, 100_000
CALL_NS, RETURN_NS = 1_000, 2_000  # before a launch, and behind it to the next

Json = dict[str, Any]


@dataclass
class Host:
    """The one thread that launches everything; it knows the time and when streams are free."""

    now_ns: int = PAUSE_NS
    correlation: int = 100
    free_ns: dict[int, int] = field(default_factory=dict)

    def launch(
        self,
        operator: str,
        call: str,
        cbid: int,
        stream: int,
        took_ns: int,
        *,
        blocking: bool = False,
    ) -> Launched:
        """An operator that launches work on a stream, and waits for it if it is blocking."""
        self.correlation += 1
        begin_ns, launched_ns, link = self.now_ns - CALL_NS, self.now_ns, self.correlation
        start_ns = max(launched_ns + LAUNCH_NS + DELAY_NS, self.free_ns.get(stream, 0))
        self.free_ns[stream] = start_ns + took_ns
        self.now_ns += LAUNCH_NS
        events = [
            runtime_event(call, launched_ns, LAUNCH_NS, cbid=cbid, correlation=link),
            flow_event("s", PROCESS, PROCESS, launched_ns, link),
        ]
        if blocking:
            events.append(self._wait("cudaStreamSynchronize", 131, start_ns + took_ns))
        self.now_ns += RETURN_NS
        its = host_event("cpu_op", operator, begin_ns, self.now_ns - RETURN_NS + CALL_NS - begin_ns)
        return Launched(start_ns, link, [its, *events])

    def _wait(self, call: str, cbid: int, until_ns: int) -> Json:
        self.correlation += 1
        waited_ns = max(until_ns - self.now_ns, CALL_NS)
        event = runtime_event(call, self.now_ns, waited_ns, cbid=cbid, correlation=self.correlation)
        self.now_ns += waited_ns
        return event

    def synchronize(self) -> Json:
        """The host waits for all streams."""
        return self._wait("cudaDeviceSynchronize", 165, max(self.free_ns.values()))

    def labelled(self, label: str, begin_ns: int) -> Json:
        """What has happened since, under a label; then a pause."""
        event = host_event("user_annotation", label, begin_ns, self.now_ns - begin_ns)
        self.now_ns += PAUSE_NS
        return event


@dataclass(frozen=True)
class Launched:
    """What a host launched: when it starts on the GPU, its correlation, the host's events."""

    start_ns: int
    link: int
    events: list[Json]


def host_event(category: str, name: str, start_ns: int, duration_ns: int) -> Json:
    """An event of the host's thread."""
    times = {"ts": start_ns / 1e3, "dur": duration_ns / 1e3}
    return {**event(category, name, PROCESS, PROCESS), **times, "args": {}}


def runtime_event(name: str, start_ns: int, duration_ns: int, **args: int) -> Json:
    """A call of the CUDA runtime."""
    return {**host_event("cuda_runtime", name, start_ns, duration_ns), "args": args}


def flow_event(phase: str, process: int, thread: int, start_ns: int, link: int) -> Json:
    """An end of the arrow from a launch to what it launched."""
    its = {**event("ac2g", "ac2g", process, thread), "ph": phase, "id": link}
    return {**its, "ts": start_ns / 1e3, **({"bp": "e"} if phase == "f" else {})}


def event(category: str, name: str, process: int, thread: int) -> Json:
    """What every event has."""
    return {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}


def device_events(
    category: str, name: str, stream: int, its: Launched, took_ns: int, args: Json
) -> Iterator[Json]:
    """What ran on a stream of GPU 0, and the end of the arrow to it."""
    times = {"ts": its.start_ns / 1e3, "dur": took_ns / 1e3}
    yield {**event(category, name, 0, stream), **times, "args": args}
    yield flow_event("f", 0, stream, its.start_ns, its.link)


def device(number: int, name: str, memory: int, major: int, multiprocessors: int) -> Json:
    """A GPU's properties."""
    return {
        "id": number,
        "name": name,
        "totalGlobalMem": memory,
        "computeMajor": major,
        "computeMinor": 0,
        "numSms": multiprocessors,
        "warpSize": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536,
        "sharedMemPerBlock": 49152,
    }


def names(gpus: int, streams: Iterable[int]) -> Iterator[Json]:
    """The names of the process, the GPUs and the streams of GPU 0."""
    for process, label in ((PROCESS, "CPU"), *((gpu, f"GPU {gpu}") for gpu in range(gpus))):
        for name, args in (
            ("process_name", {"name": "python"}),
            ("process_labels", {"labels": label}),
        ):
            yield {"ph": "M", "name": name, "ts": 0, "pid": process, "tid": 0, "args": args}
    for stream in streams:
        args = {"name": f"stream {stream}"}
        yield {"ph": "M", "name": "thread_name", "ts": 0, "pid": 0, "tid": stream, "args": args}


def document(events: list[Json], *, source: str, base_ns: int, devices: list[Json]) -> Json:
    """The trace of these events, as rank 0's file has it."""
    return {
        "schemaVersion": 1,
        "deviceProperties": devices,
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "reconstruction": f"from the figures published at {source}",
        "host_name": HOST,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "traceEvents": events,
        "traceName": "rank0.json.gz",
    }


def save(folder: Path, trace: Json, manifest: Json, expected: Json) -> None:
    """Write a reconstruction's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "rank0.json.gz", trace)
    for name, content in (("manifest", manifest), ("expected", expected)):
        text = json.dumps(content, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, "utf-8")
