"""Work of accelerators other than CUDA's and ROCm's is read, on devices by torch's names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.measures import Measures
from commtrace.reader import read

Event = dict[str, Any]
Reading = Callable[[Any], Measures]

HOST, HARDWARE, GROUPS, CANN = 4711, 4712, 4713, 4714


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    def read_trace(document: Any) -> Measures:
        file = tmp_path / "rank0.json"
        file.write_text(json.dumps(document))
        return read([file])

    return read_trace


def work(category: str | None, name: str, ts: float | str, dur: float, **fields: Any) -> Event:
    event = {"ph": "X", "name": name, "pid": 0, "tid": 3, "ts": ts, "dur": dur, "args": {}}
    return event | ({"cat": category} if category else {}) | fields


def hosted(name: str, ts: float, dur: float) -> Event:
    return work("cpu_op", name, ts, dur, pid=HOST, tid=HOST)


def unread(run: Measures) -> list[str]:
    return [note.message for note in run.notes if note.code == "unread-events"]


@pytest.mark.parametrize(
    ("category", "device"), [("mtia_ccp_events", "mtia:1"), ("hpu_op", "hpu:1")]
)
def test_a_category_of_its_own_holds_kernels(reading: Reading, category: str, device: str) -> None:
    """Of MTIA and Habana the process is the device's number, the thread its queue."""
    run = reading(
        {
            "traceEvents": [
                hosted("aten::mm", 0, 100),
                work(category, "gemm", 10, 20, pid=1),
                work(category, "hccl_all_reduce", 30, 40, pid=1, tid=5),
            ]
        }
    )
    columns = ["device", "stream", "kind", "start_ns", "duration_ns"]
    assert run.kernels[columns].to_numpy().tolist() == [
        [device, 3, "compute", 10_000, 20_000],
        [device, 5, "communication", 30_000, 40_000],
    ]
    assert run.collectives[["device", "op"]].to_numpy().tolist() == [[device, "all_reduce"]]
    assert unread(run) == []


def test_what_the_host_calls_is_no_work(reading: Reading) -> None:
    """Habana's host has the kernels' category, and the host's process."""
    called = work("hpu_op", "enqueue", 5, 3, pid=HOST)
    kernel = work("hpu_op", "gemm", 10, 20)
    run = reading({"traceEvents": [hosted("aten::mm", 0, 100), called, kernel]})
    assert run.kernels["name"].tolist() == ["gemm"]
    assert unread(run) == []


@pytest.mark.parametrize("pid", ["device 0", 90_210, -1, None])
def test_what_has_no_device_is_named(reading: Reading, pid: Any) -> None:
    kernel = work("mtia_ccp_events", "gemm", 10, 20, pid=pid)
    run = reading({"traceEvents": [hosted("aten::mm", 0, 100), kernel]})
    assert run.kernels.empty
    assert len(unread(run)) == 1
    assert unread(run)[0].startswith("1 event of category mtia_ccp_events is not read: 0.02 ms")


@pytest.mark.parametrize(
    ("category", "device"),
    [
        ("xpu_runtime", "xpu:0"),
        ("privateuse1_driver", "privateuseone:0"),
        ("mlu_runtime", "mlu:0"),
        ("cuda_runtime", "cuda:0"),
    ],
)
def test_launches_are_joined_and_name_the_device(
    reading: Reading, events: Any, category: str, device: str
) -> None:
    """Kernels and copies have CUDA's categories, the launches their own."""
    launch = events.launch(5, 1) | {"cat": category}
    run = reading({"traceEvents": [launch, events.kernel("gemm", 20, 5, 1)]})
    assert run.kernels["launch_ns"].tolist() == [5000]
    assert run.kernels["device"].tolist() == [device]


def test_copies_of_intel(reading: Reading, events: Any) -> None:
    copies = [
        events.copy("Memcpy M2D (MEMORY(Unknown) -> DEVICE)", 0, 5, bytes=8),
        events.copy("Memcpy D2M", 10, 5, bytes=8),
        events.copy("Memcpy D2D", 20, 5, bytes=8),
    ]
    launch = events.launch(0, 1) | {"cat": "xpu_runtime"}
    run = reading({"traceEvents": [launch, *copies]})
    assert run.copies[["kind", "source", "destination"]].to_numpy().tolist() == [
        ["HtoD", "host", "xpu:0"],
        ["DtoH", "xpu:0", "host"],
        ["DtoD", "xpu:0", "xpu:0"],
    ]


def process(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def task(kind: str, name: str, ts: float, dur: float, tid: int = 2) -> Event:
    """Ascend writes times as strings."""
    return work(None, name, str(ts), dur, pid=HARDWARE, tid=tid, args={"Task Type": kind})


NAMES = [process(HARDWARE, "Ascend Hardware"), process(GROUPS, "HCCL"), process(CANN, "CANN")]
ASCEND = [
    hosted("aten::mm", 0, 200) | {"ts": "0.000"},
    work(None, "AscendCL@aclopExecute", 1, 5, pid=CANN),
    task("AI_CORE", "MatMulV2", 10, 20),
    task("SDMA_SQE", "MEMCPY_ASYNC", 30, 5),
    task("EVENT_WAIT_SQE", "EVENT_WAIT", 35, 60),
    task("COMMUNICATION", "hcom_allReduce_", 40, 50, tid=9),
    work(None, "hcom_allReduce__503_0_1", "40.125", 50, pid=GROUPS, tid=0),
    work(None, "Notify_Wait", 41, 20, pid=GROUPS, tid=1),
]


@pytest.mark.parametrize("document", [[*NAMES, *ASCEND], {"traceEvents": [*ASCEND, *NAMES]}])
def test_ascend(reading: Reading, document: Any) -> None:
    """Its device events have no category; the names of processes may come behind them."""
    run = reading(document)
    columns = ["device", "stream", "name", "kind", "start_ns", "duration_ns"]
    assert sorted(run.kernels[columns].to_numpy().tolist()) == [
        ["npu:0", -1, "hcom_allReduce__503_0_1", "communication", 40_125, 50_000],
        ["npu:0", 2, "MatMulV2", "compute", 10_000, 20_000],
    ]
    assert run.copies[["device", "stream", "start_ns"]].to_numpy().tolist() == [
        ["npu:0", 2, 30_000]
    ]
    assert run.collectives["op"].tolist() == ["all_reduce"]
    assert unread(run) == []


@pytest.mark.parametrize("late", [False, True])
def test_ascend_without_a_process_of_its_communication(reading: Reading, late: bool) -> None:
    """It is then taken from the hardware's events, and from there only."""
    hardware, groups, *_ = NAMES
    document = [hardware, *ASCEND[2:6], *([groups, ASCEND[6]] if late else [])]
    names = reading(document).collectives["name"].tolist()
    assert names == (["hcom_allReduce__503_0_1"] if late else ["hcom_allReduce_"])


def test_tasks_of_an_unknown_type_are_named(reading: Reading) -> None:
    run = reading([*NAMES, *ASCEND, task("QUANTUM", "entangle", 110, 5)])
    [message] = unread(run)
    assert message.startswith(
        "1 event without a category is not read: 0.005 ms, 5 % of the trace's time; if it is an"
    )
