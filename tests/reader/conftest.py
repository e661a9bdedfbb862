"""A plain reading of a trace, to hold the fast one against."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from commtrace import comms
from commtrace.reader.events import Arguments, Call, Gpu, Hosted, Launches, Scan
from commtrace.schema import NULL, Coded

GPU = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "gpu_memcpy",
    "Memcpy": "gpu_memcpy",
    "gpu_memset": "gpu_memset",
    "Memset": "gpu_memset",
}
LAUNCHES = ("cuda_runtime", "cuda_driver", "Runtime")
OPERATORS = ("cpu_op", "Operator")

Event = dict[str, Any]


@pytest.fixture(scope="session")
def reference_scan() -> Callable[[Path], Scan]:
    """Read one trace with ``json.load`` and nothing clever; exact decimal times."""
    return _scan


def _scan(path: Path) -> Scan:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        document = json.load(file, parse_float=Decimal)
    every = document.pop("traceEvents")
    metadata = json.loads(json.dumps(document, default=float))
    base = metadata.get("baseTimeNanoseconds") or 0
    events = [e for e in every if e.get("ph") == "X"]
    gpu = [e for e in events if e.get("cat") in GPU]
    launches = [
        e for e in events if e.get("cat") in LAUNCHES and "correlation" in e.get("args", {})
    ]
    operators = [e for e in events if e.get("cat") in OPERATORS]
    annotations = [e for e in events if e.get("cat") == "user_annotation"]
    row = {id(event): i for i, event in enumerate(gpu)}
    return Scan(
        file=str(path),
        metadata=metadata,
        gpu=_gpu(gpu, base),
        launches=Launches(
            correlation=_argument(launches, "correlation"),
            thread=_ints([e["tid"] for e in launches]),
            start_ns=_starts(launches, base),
            duration_ns=_durations(launches),
        ),
        operators=_hosted([] if gpu else operators, base),
        annotations=_hosted(annotations, base),
        calls=tuple(_call(e, base, row.get(id(e), -1)) for e in events if _is_call(e)),
        threads={
            e["tid"]: e["args"]["name"]
            for e in every
            if e.get("ph") == "M" and e.get("name") == "thread_name"
        },
        events=len(every),
    )


def _is_call(event: Event) -> bool:
    category, name = event.get("cat"), event["name"]
    if GPU.get(category) == "kernel":
        return comms.is_communication_kernel(name) or "Collective name" in event.get("args", {})
    if category in OPERATORS:
        return comms.is_communication_call(name)
    return category == "user_annotation" and name.startswith(("nccl:", "gloo:"))


def _call(event: Event, base: int, gpu_row: int) -> Call:
    category = "cpu_op" if event["cat"] in OPERATORS else GPU.get(event["cat"], event["cat"])
    return Call(
        category=category,
        name=event["name"],
        thread=event["tid"],
        start_ns=_ns(event["ts"]) + base,
        duration_ns=_ns(event.get("dur", 0)),
        args=msgspec.convert(event.get("args", {}), Arguments),
        gpu_row=gpu_row,
    )


def _gpu(events: list[Event], base: int) -> Gpu:
    args = [event.get("args", {}) for event in events]
    device = [
        a.get("device", a.get("fromDevice", e["pid"])) for a, e in zip(args, events, strict=True)
    ]
    return Gpu(
        category=Coded.of([GPU[event["cat"]] for event in events]),
        name=Coded.of([event["name"] for event in events]),
        device=_ints(device),
        stream=_ints([a.get("stream", e["tid"]) for a, e in zip(args, events, strict=True)]),
        start_ns=_starts(events, base),
        duration_ns=_durations(events),
        correlation=_argument(events, "correlation"),
        size_bytes=_argument(events, "bytes"),
        from_device=_argument(events, "fromDevice"),
        to_device=_argument(events, "toDevice"),
    )


def _hosted(events: list[Event], base: int) -> Hosted:
    return Hosted(
        name=Coded.of([event["name"] for event in events]),
        thread=_ints([event["tid"] for event in events]),
        start_ns=_starts(events, base),
        duration_ns=_durations(events),
    )


def _ns(microseconds: Any) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value())


def _starts(events: list[Event], base: int) -> Any:
    return _ints([_ns(event["ts"]) + base for event in events])


def _durations(events: list[Event]) -> Any:
    return _ints([_ns(event.get("dur", 0)) for event in events])


def _argument(events: list[Event], name: str) -> Any:
    return _ints([event.get("args", {}).get(name, NULL) for event in events])


def _ints(values: list[Any]) -> Any:
    return np.asarray(values, dtype=np.int64)
