"""Kernels and copies: launches, steps, what a copy's name tells; steps and operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.reader.json.scan import scan


def test_a_kernel_belongs_to_the_step_that_launched_it(read: Any, events: Any) -> None:
    found = read(
        [
            events.note("ProfilerStep#4", 0, 100),
            events.note("ProfilerStep#5", 100, 100),
            events.launch(90, 1),
            events.kernel("gemm", 150, 10, 1, **{"External id": 2}),
            events.launch(110, 2, tid=9),
            events.kernel("gemm", 260, 10, 2),
            events.launch(95, 3),
            events.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 120, 10, 3, stream=20),
            events.kernel("relu", 50, 1),
            events.kernel("relu", 500, 1),
        ]
    )
    rows = [(k["launch_ns"], k["thread"], k["step"], k["kind"]) for k in found.kernels]
    assert rows == [
        (90_000, 1, 4, "compute"),  # runs in step 5; its external id is another's correlation
        (110_000, 9, 5, "compute"),
        (95_000, 1, 4, "communication"),
        (None, None, None, "compute"),  # its launch is lost, and so is its step
        (None, None, None, "compute"),
    ]
    assert {k["device"] for k in found.kernels} == {"cuda:0"}
    assert [k["stream"] for k in found.kernels] == [7, 7, 20, 7, 7]


def test_orphans_are_noted_only_where_launches_were_recorded(read: Any, events: Any) -> None:
    orphan = events.kernel("gemm", 150, 10, 77)
    assert "orphaned-kernels" not in read([orphan]).notes
    found = read([orphan, events.launch(90, 1), events.kernel("gemm", 170, 10, 1)])
    assert found.notes["orphaned-kernels"].startswith("1 ")


def test_gpu_work_before_its_launch_is_noted(read: Any, events: Any) -> None:
    def starting(ts: float) -> list[Any]:
        return [events.launch(100, 1), events.kernel("gemm", ts, 10, 1)]

    assert "negative-launch-latency" not in read(starting(90)).notes
    assert read(starting(89.9)).notes["negative-launch-latency"].startswith("1 ")


@pytest.mark.parametrize(
    ("name", "kind", "source", "destination", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "host", "cuda:3", "pageable"),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", "host", "cuda:3", "pinned"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "cuda:3", "host", "pinned"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", "cuda:3", "cuda:3", None),
        ("Memcpy HtoH (Pageable -> Pinned)", "HtoH", "host", "host", None),
        ("Memcpy HtoA (Pinned -> Array)", "HtoD", "host", "cuda:3", "pinned"),
        ("Memcpy HtoD (Host -> Device)", "HtoD", "host", "cuda:3", None),
        ("CopyHostToDevice", "HtoD", "host", "cuda:3", None),
        ("CopyDeviceToHost", "DtoH", "cuda:3", "host", None),
        ("Memcpy HtoD", "HtoD", "host", "cuda:3", None),
    ],
)
def test_a_copy_is_read_from_its_name(
    read: Any, events: Any, name: str, kind: str, source: str, destination: str, memory: str
) -> None:
    found = read([events.copy(name, 1, 2, device=3, bytes=4096)])
    (row,) = found.copies
    assert (row["kind"], row["source"], row["destination"]) == (kind, source, destination)
    assert (row["memory"], row["size_bytes"], row["duration_ns"]) == (memory, 4096, 2000)


def test_a_peer_copy_goes_from_device_to_device(read: Any, events: Any) -> None:
    peer = events.copy("Memcpy PtoP (Device -> Device)", 1, 2, bytes=8)
    del peer["args"]["device"]
    peer["args"] |= {"fromDevice": 1, "inDevice": 1, "toDevice": 2}
    (row,) = read([peer]).copies
    assert (row["kind"], row["source"], row["destination"]) == ("PtoP", "cuda:1", "cuda:2")
    assert row["device"] == "cuda:1"


def test_a_peer_copy_that_pulls_runs_on_its_destination(read: Any, events: Any) -> None:
    pulled = events.copy("Memcpy PtoP (Device -> Device)", 1, 2, bytes=8)
    del pulled["args"]["device"]
    pulled["args"] |= {"fromDevice": 1, "inDevice": 0, "toDevice": 0}
    (row,) = read([pulled]).copies
    assert (row["source"], row["destination"], row["device"]) == ("cuda:1", "cuda:0", "cuda:0")


def test_a_fill_is_no_copy(read: Any, events: Any) -> None:
    fill = events.copy("Memset (Device)", 1, 2, "gpu_memset", bytes=512)
    (row,) = read([fill]).copies
    assert (row["kind"], row["source"], row["destination"]) == ("Memset", None, "cuda:0")


def test_rocm_does_not_tell_where_a_device_copy_goes(read: Any, events: Any) -> None:
    copy = events.copy("Memcpy DtoD (Device -> Device)", 1, 2)
    (row,) = read([copy], hip_runtime_version=60443483).copies
    assert (row["kind"], row["source"], row["destination"]) == ("DtoD", None, None)
    assert row["size_bytes"] is None


def test_a_copy_of_unknown_direction_is_kept_and_noted(read: Any, events: Any) -> None:
    found = read([events.copy("Memcpy Unknown", 1, 2, bytes=5)])
    assert found.copies[0]["kind"] is None
    assert found.copies[0]["source"] is None
    assert found.notes["unknown-copies"].startswith("1 ")


def test_steps_and_labels(read: Any, events: Any) -> None:
    found = read(
        [
            events.note("ProfilerStep#2", 0, 100),
            events.note("forward", 10, 30),
            events.note("nccl:all_reduce", 20, 1),
            events.note("gloo:all_reduce", 20, 1),
            events.note("between", 100, 5, tid=4),
        ]
    )
    assert [(s["step"], s["label"], s["thread"]) for s in found.steps] == [
        (2, None, 1),
        (2, "forward", 1),
        (None, "between", 4),
    ]


def test_operators_on_the_cpu_are_the_topmost_and_all_communication(read: Any, events: Any) -> None:
    found = read(
        [
            events.op("backward", 0, 100),
            events.op("aten::mm", 10, 20),
            events.op("c10d::allreduce_", 40, 10),
            events.op("record_param_comms", 42, 2),
            events.op("aten::add", 100, 10),
            events.op("aten::mul", 50, 10, tid=2),
            events.op("c10d::barrier", 70, 10, tid=2),
        ]
    )
    assert [(o["name"], o["kind"], o["thread"]) for o in found.ops] == [
        ("backward", "compute", 1),
        ("c10d::allreduce_", "communication", 1),
        ("aten::add", "compute", 1),
        ("aten::mul", "compute", 2),
        ("c10d::barrier", "communication", 2),
    ]


def test_beside_a_gpu_only_communication_operators_are_kept(read: Any, events: Any) -> None:
    found = read(
        [
            events.kernel("gemm", 0, 1),
            events.op("aten::mm", 0, 1),
            events.op("c10d::allreduce_", 2, 10),
            events.op("record_param_comms", 3, 2),
        ]
    )
    assert [o["name"] for o in found.ops] == ["c10d::allreduce_"]


@pytest.mark.parametrize("category", ["cpu_op", "Operator", "user_annotation"])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_steps_of_any_torch(
    tmp_path: Path, events: Any, plain_tables: Any, category: str, fast: bool, on_gpu: bool
) -> None:
    step = {**events.op("ProfilerStep#3", 0, 100), "cat": category}
    work = [events.launch(20, 1), events.kernel("mm", 30, 5, 1)] if on_gpu else []
    head = {"deviceProperties": [{"id": 0}]} if on_gpu else {}
    trace = {**head, "traceEvents": [step, events.op("aten::mm", 10, 50), *work]}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(trace, indent=1))
    found = plain_tables(scan(path, fast=fast))
    assert [(row["step"], row["label"], row["duration_ns"]) for row in found.steps] == [
        (3, None, 100_000)
    ]
    assert [(row["name"], row["step"]) for row in found.kernels] == ([("mm", 3)] if on_gpu else [])
    assert [(op["name"], op["step"]) for op in found.ops] == ([] if on_gpu else [("aten::mm", 3)])


def test_a_lost_launch_leaves_the_step_unknown(read: Any, events: Any) -> None:
    step = events.note("ProfilerStep#3", 0, 200)
    orphan = events.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(a)", 150, 10, 77)
    found = read([step, orphan])
    assert (found.kernels[0]["step"], found.collectives[0]["step"]) == (3, 3)
    found = read([step, orphan, events.launch(90, 1), events.kernel("gemm", 250, 10, 1)])
    assert [row["step"] for row in found.kernels] == [None, 3]
    assert found.collectives[0]["step"] is None


def test_a_step_that_a_program_did_not_end_is_none(read: Any, events: Any) -> None:
    found = [events.note(f"ProfilerStep#{n}", 10 * n, 10) for n in (5, 6, 7)]
    found += [events.note("evaluate", 72, 5), events.op("aten::mul", 73, 1)]
    whole = read(found, commtrace={"steps": [5, 6], "partial": None})
    assert [(row["step"], row["label"]) for row in whole.steps] == [
        (5, None),
        (6, None),
        (None, "evaluate"),
    ]
    broken = read(found, commtrace={"steps": [5, 6], "partial": "rank 1: ValueError"})
    assert [row["step"] for row in broken.steps] == [5, 6, 7, 7]  # it is where it broke off
    odd = read(found, commtrace={"steps": "5"})
    assert [row["step"] for row in odd.steps] == [5, 6, 7, 7]
