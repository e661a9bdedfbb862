"""Calls that block the host, waits for a GPU, and how they are tied to its work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.reader import read as read_files
from commtrace.reader.json.scan import scan


def called(name: str, ts: float, correlation: int, dur: float = 1, tid: int = 1) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime",
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"cbid": 1, "correlation": correlation},
    }


def synchronised(kind: str, ts: float, correlation: int, stream: int = -1, **of: int) -> Any:
    args = {"cuda_sync_kind": kind, "stream": stream, "correlation": correlation, "device": 0}
    if "Event" in kind:
        args |= {
            "wait_on_stream": of.get("on", -1),
            "wait_on_cuda_event_record_corr_id": of.get("record", -1),
            "wait_on_cuda_event_id": of.get("event", -1),
        }
    at = {"pid": 0, "tid": stream, "ts": ts, "dur": 2}
    return {"ph": "X", "cat": "cuda_sync", "name": kind, **at, "args": args}


BLOCKING = [
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
    *("cudaMemcpyAsync", "cudaMemcpyPeerAsync", "cudaMalloc", "cudaFree", "cudaFreeHost"),
    *("cudaHostAlloc", "cudaMallocHost", "cudaHostRegister", "cudaHostUnregister"),
    *("cuStreamSynchronize_ptsz", "cuCtxSynchronize", "cuMemcpyDtoHAsync_v2", "cuMemAlloc_v2"),
    *("cuMemFree_v2", "cuMemHostAlloc", "hipDeviceSynchronize", "hipMemcpyWithStream"),
    *("hipHostMalloc", "hipHostFree", "hipFree"),
]
OTHER = [
    *("cudaLaunchKernel", "cudaEventQuery", "cudaMemsetAsync", "cudaMallocAsync", "cudaFreeAsync"),
    *("cuMemAllocFromPoolAsync", "cudaMallocFromPoolAsync_v11020", "cudaGraphLaunch"),
    *("cudaStreamWaitEvent", "cudaHostGetFlags", "hipFreeAsync", "cudaGraphMemcpyNodeGetParams"),
]


def test_the_calls_that_can_block(read: Any) -> None:
    calls = [called(name, ts, ts + 1) for ts, name in enumerate([*OTHER, *BLOCKING])]
    assert [row["name"] for row in read(calls).blocking_calls] == BLOCKING


@pytest.mark.parametrize(
    ("ahead", "dur", "graph", "blocks"),
    [
        (400, 5_000, False, True),
        (400, 20, False, False),  # as long as launches take
        (100, 5_000, False, False),  # the host did something else
        (400, 5_000, True, False),  # a graph's kernels are one launch
    ],
)
def test_a_launch_blocks_while_the_queue_of_launches_is_full(
    read: Any, events: Any, ahead: int, dur: float, graph: bool, blocks: bool
) -> None:
    number = (lambda at: 1) if graph else (lambda at: 1 + at)
    trace = [
        called("cudaLaunchKernel", number(at), number(at)) for at in range(1 if graph else ahead)
    ]
    trace += [events.kernel("a", 500 + 100 * at, 100, number(at)) for at in range(ahead)]
    trace += [called("cudaLaunchKernel", 600, 999, dur=dur), events.kernel("b", 90_000, 1, 999)]
    found = read(trace).blocking_calls
    assert [(row["name"], row["duration_ns"]) for row in found] == (
        [("cudaLaunchKernel", 1_000 * dur)] if blocks else []
    )


def test_a_blocking_call_tells_the_stream_that_it_waits_for(read: Any, events: Any) -> None:
    found = read(
        [
            events.note("ProfilerStep#4", 0, 100),
            called("cudaEventSynchronize", 50, 4, tid=9),
            called("cudaMemcpyAsync", 10, 1, dur=7),
            events.copy("Memcpy DtoH (Device -> Pageable)", 12, 3, correlation=1, bytes=4),
            called("cudaStreamSynchronize", 20, 2),
            synchronised("Stream Sync", 21, 2, stream=13),
            called("cudaDeviceSynchronize", 30, 3),
            synchronised("Context Sync", 31, 3),
            synchronised("Event Sync", 51, 4, on=20, record=40, event=6),
            called("cudaStreamSynchronize", 120, 5),
        ]
    )
    columns = ("thread", "start_ns", "duration_ns", "device", "stream", "correlation", "step")
    assert [tuple(row[name] for name in columns) for row in found.blocking_calls] == [
        (1, 10_000, 7_000, "cuda:0", 7, 1, 4),
        (1, 20_000, 1_000, "cuda:0", 13, 2, 4),
        (1, 30_000, 1_000, "cuda:0", None, 3, 4),
        (9, 50_000, 1_000, "cuda:0", 20, 4, 4),
        (1, 120_000, 1_000, None, None, 5, None),  # not recorded as a synchronisation
    ]


def test_a_wait_tells_what_it_waits_for(read: Any, events: Any) -> None:
    found = read(
        [
            called("cudaEventRecord", 10, 1),
            called("cudaStreamWaitEvent", 20, 2, tid=9),
            synchronised("Stream Wait Event", 21, 2, stream=24, on=20, record=1, event=6),
            synchronised("Event Sync", 31, 3, event=8),
            called("cudaEventQuery", 30, 3),
            called("hipStreamWaitEvent", 40, 4),
        ]
    )
    columns = ("kind", "call", "thread", "device", "stream", "awaited_stream", "event")
    assert [tuple(row[name] for name in columns) for row in found.synchronisations] == [
        ("Event Record", "cudaEventRecord", 1, None, None, None, None),
        ("Stream Wait Event", "cudaStreamWaitEvent", 9, "cuda:0", 24, 20, 6),
        ("Event Sync", "cudaEventQuery", 1, "cuda:0", None, None, 8),
        ("Stream Wait Event", "hipStreamWaitEvent", 1, None, None, None, None),
    ]
    columns = ("record_correlation", "recorded_ns", "correlation", "start_ns", "duration_ns")
    assert [tuple(row[name] for name in columns) for row in found.synchronisations] == [
        (None, None, 1, 10_000, 1_000),
        (1, 10_000, 2, 21_000, 2_000),
        (None, None, 3, 31_000, 2_000),
        (None, None, 4, 40_000, 1_000),
    ]


def test_a_cuda_graph_has_one_launch(read: Any, events: Any) -> None:
    found = read(
        [
            called("cudaGraphLaunch", 10, 1),
            events.kernel("gemm", 20, 5, 1),
            events.kernel("gemm", 25, 5, 1, stream=20),
            events.copy("Memcpy DtoD (Device -> Device)", 30, 5, correlation=1, bytes=4),
        ]
    )
    rows = [*found.kernels, *found.copies]
    assert [(row["launch_ns"], row["thread"], row["correlation"]) for row in rows] == [
        (10_000, 1, 1)
    ] * 3


def test_synchronisations_with_wrong_arguments_are_noted(tmp_path: Path, events: Any) -> None:
    wrong = synchronised("Event Sync", 10, 1)
    wrong["args"]["stream"] = "all"
    (tmp_path / "rank0.json").write_text(
        json.dumps({"traceEvents": [wrong, events.kernel("gemm", 1, 1)]})
    )
    (note,) = scan(tmp_path / "rank0.json").notes
    assert note.code == "bad-events"


@pytest.mark.parametrize(
    ("name", "blocking", "waits"),
    [("hta_16gpu_three_nccl_streams", 1326, 425), ("hta_v100_allreduce_no_metadata", 2041, 6060)],
)
def test_real_traces_keep_every_one(
    real_traces: Path, name: str, blocking: int, waits: int
) -> None:
    run = read_files([real_traces / f"{name}.json.gz"], workers=1)
    launches = run.blocking_calls["name"].astype(str).str.contains("Launch")
    assert (~launches).sum() == blocking
    assert run.synchronisations["kind"].value_counts().to_dict() == {"Stream Wait Event": waits}
    assert run.synchronisations["stream"].isna().all()


@pytest.mark.parametrize(
    ("name", "full"), [("hta_16gpu_three_nccl_streams", 132), ("gpupuzzlers_streams_copies", 531)]
)
def test_a_real_hosts_queue_of_launches_is_full(real_traces: Path, name: str, full: int) -> None:
    run = read_files([real_traces / f"{name}.json.gz"], workers=1)
    calls = run.blocking_calls[run.blocking_calls["name"].astype(str).str.contains("Launch")]
    assert len(calls) == full
    end_ns = calls["start_ns"] + calls["duration_ns"]
    waiting = [
        int(((run.kernels["launch_ns"] <= at) & (run.kernels["start_ns"] > at)).sum())
        for at in end_ns.iloc[:5]
    ]
    assert min(waiting) >= 256


def test_a_real_trace_with_synchronisations(real_traces: Path) -> None:
    run = read_files([real_traces / "hta_cuda_event_sync.json.gz"], workers=1)
    kinds = run.synchronisations["kind"].value_counts().to_dict()
    assert kinds == {"Event Record": 4, "Event Sync": 3, "Stream Wait Event": 1, "Context Sync": 1}
    (wait,) = run.synchronisations[run.synchronisations["kind"] == "Stream Wait Event"].itertuples()
    assert (wait.stream, wait.awaited_stream, wait.event) == (24, 20, 19)
    assert wait.recorded_ns < wait.start_ns
