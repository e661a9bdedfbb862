"""One file read by several processes is read as by one."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commtrace import engine
from commtrace.reader import read, workers
from commtrace.reader.json import shares
from commtrace.reader.json.events import Scan
from commtrace.reader.json.scan import scan
from commtrace.table import Coded

Json = dict[str, Any]

COMMUNICATION = {"Collective name": "allreduce", "In msg nelems": 9, "dtype": "Float", "Seq": 1}


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SHARE_BYTES", 1)
    monkeypatch.setattr("commtrace.reader.json.document._RUN", 2)
    monkeypatch.setattr("commtrace.reader.json.source.BLOCK", 700)


def event(number: int, cat: str, name: str, ts: float, **args: Any) -> Json:
    where = {"pid": 0, "tid": 7} if cat == "kernel" else {"pid": 9, "tid": 9 + number % 2}
    times = {"ts": ts, "dur": 2 + number % 3}
    return {"ph": "X", "cat": cat, "name": name, **where, **times, "args": args}


def loop(steps: int, start_us: float = 1000.125) -> list[Json]:
    events: list[Json] = [{"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}}]
    for step in range(steps):
        at, id_ = start_us + 100 * step, 10 * step + 1
        events += [
            event(step, "user_annotation", f"ProfilerStep#{step}", at),
            event(step, "python_function", f"train.py({step}): f", at),
            event(step, "cpu_op", f"aten::op{step % 7}", at + 1),
            event(step, "cpu_op", "record_param_comms", at + 3, **COMMUNICATION),
            event(step, "cuda_runtime", "cudaLaunchKernel", at + 4, correlation=id_),
            event(step, "cuda_runtime", "cudaEventSynchronize", at + 5, correlation=id_ + 1),
            {"ph": "s", "id": id_, "pid": 9, "tid": 9, "ts": at + 4, "cat": "ac2g", "name": "ac2g"},
        ]
    for step in range(steps):
        at, id_ = start_us + 100 * step, 10 * step + 1
        known = {"device": 0, "stream": 7, "correlation": id_}
        events += [
            event(step, "kernel", f"gemm{step % 5}", at + 9, **known),
            event(step, "kernel", "ncclDevKernel_AllReduce", at + 20, **known, **COMMUNICATION),
            event(step, "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 30, bytes=4, **known),
            event(step, "cuda_sync", "Stream Sync", at + 40, stream=7, correlation=id_ + 1),
        ]
    return events


def kineto(events: list[Json], **head: Any) -> str:
    lines = ",\n".join(
        "  {\n    " + json.dumps(event).removeprefix("{").removesuffix("}") + "\n  }"
        for event in events
    )
    start = json.dumps({"deviceProperties": [{"id": 0}], **head}).removesuffix("}")
    return f'{start},\n  "traceEvents": [\n{lines}\n  ],\n  "baseTimeNanoseconds": 1000\n}}'


def equal(a: Scan, b: Scan) -> None:
    for part in ("gpu", "launches", "synchronisations", "operators", "annotations"):
        one, other = getattr(a, part), getattr(b, part)
        for column in one.__struct_fields__:
            x, y = getattr(one, column), getattr(other, column)
            if isinstance(x, Coded):
                assert x.names == y.names, (part, column)
                x, y = x.codes, y.codes
            assert x.dtype == y.dtype
            assert np.array_equal(x, y), (part, column)
    for value in ("calls", "events", "metadata", "notes", "device_type", "file"):
        assert getattr(a, value) == getattr(b, value), value


@pytest.fixture
def shared(tmp_path: Path) -> Callable[[bytes, int], bool]:
    """Read a file by one process and by several; whether these really shared it."""

    def both(content: bytes, processes: int = 3) -> bool:
        file = tmp_path / "rank0.json"
        file.write_bytes(content)
        found = scan(file, processes=processes)
        equal(found, scan(file))
        its = shares.scan_shared(file, None, True, processes)
        if its is not None:
            equal(its, found)
        return its is not None

    return both


@pytest.mark.parametrize("processes", [2, 3, 7])
@pytest.mark.parametrize("packed", [False, True])
def test_shares_make_the_whole(
    shared: Callable[[bytes, int], bool], processes: int, packed: bool
) -> None:
    text = kineto(loop(60)).encode()
    assert shared(gzip.compress(text) if packed else text, processes)


WITHOUT_GPU = [e for e in loop(60) if e.get("cat") not in ("kernel", "gpu_memcpy")]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"traceEvents": loop(60)}),
        json.dumps({"traceEvents": loop(60)}, indent=1),
        kineto(loop(60, 1_700_000_000_000_000.125)),
        kineto(loop(60))[:30_000],
        kineto(WITHOUT_GPU),
        kineto(WITHOUT_GPU, deviceProperties=[]),
        kineto(loop(60), deviceProperties=[]),
        kineto([*loop(30), event(1, "unheard_of", "a", 5), *loop(30)]),
        kineto(loop(1)),
    ],
    ids=[
        "one line",
        "indented",
        "times as text",
        "cut off",
        "no GPU event of a GPU",
        "no GPU",
        "a GPU that is not announced",
        "events that nothing reads",
        "fewer runs than processes",
    ],
)
def test_whatever_the_file_holds(shared: Callable[[bytes], bool], text: str) -> None:
    assert shared(text.encode())


ASCEND = [
    {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "Ascend Hardware"}},
    {"ph": "X", "name": "MatMul", "pid": 4, "tid": 1, "ts": "9.5", "dur": 3}
    | {"args": {"Task Type": "AI_CORE"}},
]
HABANA = [{"ph": "X", "cat": "hpu_op", "name": "mm", "pid": 0, "tid": 1, "ts": 9, "dur": 3}]


@pytest.mark.parametrize(
    "text",
    [
        kineto(loop(60)).replace("gemm3", 'ge"mm3', 1),
        kineto(loop(60)).replace('"name": "gemm2"', '"name": 2', 1),
        kineto([*loop(60), event(1, "kernel", "backwards", 9) | {"dur": -1}]),
        kineto([*loop(60), event(1, "gpu_memcpy", "Memcpy DtoD", 9, bytes=-1)]),
        kineto([*ASCEND, *loop(60)]),
        kineto([*loop(30), *HABANA, *loop(30)]),
    ],
    ids=["repaired", "of wrong type", "left out", "unbelievable", "by process", "by hosts"],
)
def test_a_file_with_a_fault_is_left_to_one(shared: Callable[[bytes], bool], text: str) -> None:
    assert not shared(text.encode())


def test_an_unreadable_file_is_refused_as_ever(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" + "1," * 5000)
    with pytest.raises(workers.TraceError, match=r"is no trace|is a list"):
        scan(tmp_path / "a.json", processes=2)
    with pytest.raises(workers.TraceError, match="cannot be read: No such file"):
        scan(tmp_path / "b.json", processes=2)


def test_a_lone_large_file_is_shared_where_processes_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rank0.json"
    file.write_text(kineto(loop(60), distributedInfo={"rank": 0, "world_size": 1}))
    forks = 0
    fork = os.fork

    def counted() -> int:
        nonlocal forks
        forks += 1
        return fork()

    monkeypatch.setattr("os.fork", counted)
    tables = {}
    for processes, others in ((1, 1), (3, 2)):
        forks = 0
        tables[processes] = read([file], workers=processes)
        assert forks == others
    for table in ("kernels", "copies", "collectives", "steps", "synchronisations"):
        assert getattr(tables[1], table).equals(getattr(tables[3], table))
    forks = 0
    monkeypatch.setattr("commtrace.engine.pool.can_fork", lambda: False)
    read([file], workers=3)
    assert forks == 0
    assert not engine.can_fork()
