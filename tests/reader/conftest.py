"""A plain reading of a trace, to hold the fast one against."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from commtrace import comms, kernels
from commtrace import trace_tables as schema
from commtrace.arrays import NULL
from commtrace.reader import build_tables as kineto
from commtrace.reader.json.events import (
    Arguments,
    Call,
    Gpu,
    Hosted,
    Launches,
    Scan,
    Synchronisations,
)
from commtrace.reader.names import ranks_in_names
from commtrace.table import Coded

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
    hosted = [e for e in events if e.get("cat") in (*OPERATORS, "user_annotation")]
    annotations = [e for e in hosted if _is_annotation(e)]
    operators = [e for e in hosted if not _is_annotation(e)]
    row = {id(event): i for i, event in enumerate(gpu)}
    return Scan(
        file=str(path),
        metadata=metadata,
        gpu=_gpu(gpu, base),
        launches=Launches(
            name=Coded.of([event["name"] for event in launches]),
            correlation=_argument(launches, "correlation"),
            thread=_ints([e["tid"] for e in launches]),
            start_ns=_starts(launches, base),
            duration_ns=_durations(launches),
        ),
        synchronisations=_synchronisations(
            [event for event in events if event.get("cat") == "cuda_sync"], base
        ),
        operators=_hosted([] if gpu else operators, base),
        beside_gpu=_hosted(_outermost(operators) if gpu else [], base),
        annotations=_hosted(annotations, base),
        calls=tuple(_call(e, base, row.get(id(e), -1)) for e in events if _is_call(e)),
        events=len(every),
    )


def _outermost(operators: list[Event]) -> list[Event]:
    """Those that begin in no other of their thread; of the same times, the first alone."""
    open_until: dict[Any, Decimal] = {}
    found = set()
    for event in sorted(operators, key=lambda one: (Decimal(one["ts"]), -Decimal(one["dur"]))):
        thread, start = event["tid"], Decimal(event["ts"])
        if start >= open_until.get(thread, start):
            found.add(id(event))
        end = max(open_until.get(thread, start), start + Decimal(event["dur"]))
        open_until[thread] = end
    return [event for event in operators if id(event) in found]


def _is_annotation(event: Event) -> bool:
    """Whether it is one today: a profiler's steps and NCCL's own were operators once."""
    name = event["name"]
    was_operator = name.startswith("ProfilerStep#") or comms.is_communication_annotation(name)
    return event["cat"] == "user_annotation" or (event["cat"] in OPERATORS and was_operator)


def _is_call(event: Event) -> bool:
    category, name = event.get("cat"), event["name"]
    if GPU.get(category) == "kernel":
        return kernels.is_communication(name) or "Collective name" in event.get("args", {})
    if category not in (*OPERATORS, "user_annotation"):
        return False
    if _is_annotation(event):
        return comms.is_communication_annotation(name)
    return comms.is_communication_call(name)


def _call(event: Event, base: int, gpu_row: int) -> Call:
    category = GPU.get(event["cat"], "user_annotation" if _is_annotation(event) else "cpu_op")
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
        a.get("device", a.get("inDevice", e["pid"])) for a, e in zip(args, events, strict=True)
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


def _synchronisations(events: list[Event], base: int) -> Synchronisations:
    def told(name: str) -> Any:
        values = _argument(events, name)
        return np.where(values < 0, NULL, values)

    return Synchronisations(
        name=Coded.of([event["name"] for event in events]),
        device=told("device"),
        stream=told("stream"),
        correlation=told("correlation"),
        event=told("wait_on_cuda_event_id"),
        awaited_stream=told("wait_on_stream"),
        record_correlation=told("wait_on_cuda_event_record_corr_id"),
        start_ns=_starts(events, base),
        duration_ns=_durations(events),
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


class Events:
    """Writes the events of a tiny trace; times in microseconds."""

    @staticmethod
    def kernel(
        name: str, ts: float, dur: float, correlation: int | None = None, **args: Any
    ) -> Event:
        at = {"device": 0, "stream": 7, **({"correlation": correlation} if correlation else {})}
        return _event("kernel", name, ts, dur, 7, {**at, **args})

    @staticmethod
    def launch(ts: float, correlation: int, tid: int = 1) -> Event:
        return _event("cuda_runtime", "cudaLaunchKernel", ts, 1, tid, {"correlation": correlation})

    @staticmethod
    def copy(name: str, ts: float, dur: float, category: str = "gpu_memcpy", **args: Any) -> Event:
        return _event(category, name, ts, dur, 7, {"device": 0, "stream": 7, **args})

    @staticmethod
    def op(name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
        return _event("cpu_op", name, ts, dur, tid, args)

    @staticmethod
    def note(name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
        return _event("user_annotation", name, ts, dur, tid, args)

    @staticmethod
    def shaped(dims: list[Any], types: list[str], inputs: list[str] | None = None) -> Event:
        """The arguments that ``record_shapes`` adds."""
        args: Event = {"Input Dims": dims, "Input type": types}
        return args if inputs is None else {**args, "Concrete Inputs": inputs}


def _event(category: str, name: str, ts: float, dur: float, tid: int, args: Event) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


@pytest.fixture(scope="session")
def events() -> type[Events]:
    return Events


@dataclass(frozen=True)
class Plain:
    """Tables as lists of dicts, None for null, and the notes' codes."""

    tables: dict[str, list[dict[str, Any]]]
    notes: dict[str, str]

    def __getattr__(self, name: str) -> list[dict[str, Any]]:
        return self.tables[name]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Plain]:
    """Tables of a trace written from events and metadata."""

    def tables(events: list[Event], file: str = "rank0.json", **metadata: Any) -> Plain:
        path = tmp_path / file
        path.write_text(json.dumps({**metadata, "traceEvents": events}))
        return _plain(_scan(path))

    return tables


@pytest.fixture(scope="session")
def plain_tables() -> Callable[[Scan], Plain]:
    return _plain


def _plain(scan: Scan) -> Plain:
    name = Path(scan.file)
    named = ranks_in_names([name])
    otherwise = (named[name], "file-name") if named else (0, "assumed")
    result = kineto.tables(scan, kineto.identify(scan, otherwise))
    rows = {}
    for table in schema.TABLES:
        frame = table.rows(result.columns[table.name]).frame().astype(object)
        rows[table.name] = frame.where(frame.notna(), None).to_dict("records")
    return Plain(rows, {note.code: note.message for note in result.notes})
