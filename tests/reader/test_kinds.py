"""Communication that no NCCL kernel does is communication all the same, sized by its operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.reader.json.scan import scan

WORLD = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]}]
TOLD = ("op", "executed", "call", "dtype", "size_bytes", "group_size", "provenance")


def only(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    return row


def told(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in TOLD)


@pytest.mark.parametrize(
    ("operator", "dims", "types", "kernel", "op", "ins", "outs"),
    [
        (
            "symm_mem::multimem_all_reduce_",
            [[64, 8], [], []],
            ["c10::BFloat16", "", ""],
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)",
            "all_reduce",
            1024,
            1024,
        ),
        (
            "symm_mem::one_shot_all_reduce_copy",
            [[4096], [32], [], []],
            ["float", "float", "", ""],
            "void one_shot_all_reduce_kernel<float, 16, 4>(x)",
            "all_reduce",
            128,
            128,
        ),
        (
            "symm_mem::multimem_all_gather_out",
            [[16], [], [64]],
            ["float", "", "float"],
            "void multimem_all_gather_kernel<16>(x)",
            "all_gather",
            64,
            256,
        ),
        (
            "symm_mem::reduce_scatter_out",
            [[64], [], [], [16]],
            ["float", "", "", "float"],
            "void two_shot_all_reduce_kernel<float, 16, 4, true, false>(x)",
            "reduce_scatter",
            256,
            64,
        ),
        (
            "_C_custom_ar::all_reduce",
            [[], [8, 16], [8, 16], [], []],
            ["Scalar", "c10::Half", "c10::Half", "Scalar", "Scalar"],
            "void vllm::cross_device_reduce_1stage<__half, 4>(vllm::RankData*)",
            "all_reduce",
            256,
            256,
        ),
        (
            "symm_mem::all_to_all_vdev",
            [[1000], [1000], [4], [2, 4], []],
            ["float", "float", "long", "long", ""],
            "c10d::nvshmem_extension::allToAllV(void*, void*)",
            "all_to_all",
            None,
            None,
        ),
    ],
)
def test_the_operator_tells_the_size(
    read: Any,
    events: Any,
    operator: str,
    dims: list[Any],
    types: list[str],
    kernel: str,
    op: str,
    ins: int | None,
    outs: int | None,
) -> None:
    found = read(
        [
            events.op(operator, 0, 100, **events.shaped(dims, types)),
            events.launch(50, 1),
            events.kernel(kernel, 60, 5, 1),
        ],
        distributedInfo={"rank": 0, "world_size": 4, "pg_config": WORLD},
    )
    row = only(found.collectives)
    assert (row["op"], row["executed"], row["call"]) == (op, op, operator)
    assert (row["in_bytes"], row["out_bytes"]) == (ins, outs)
    assert (row["group"], row["group_size"], row["provenance"]) == ("0", 4, "operator")
    assert (row["launch_ns"], row["start_ns"], row["duration_ns"]) == (50_000, 60_000, 5_000)
    assert only(found.kernels)["kind"] == "communication"


def test_without_an_operator_the_name_tells_what_it_can(read: Any, events: Any) -> None:
    name = "void vllm::cross_device_reduce_2stage<float, 8>(vllm::RankData*)"
    row = only(read([events.launch(1, 1), events.kernel(name, 5, 5, 1)]).collectives)
    assert told(row) == ("all_reduce", "all_reduce", None, "float32", None, 8, "kernel-name")


def test_nccl_without_c10d_is_told_by_the_servers_operator(read: Any, events: Any) -> None:
    found = read(
        [
            events.op("vllm::all_reduce", 0, 100, **events.shaped([[256], []], ["float", ""])),
            events.launch(50, 1),
            events.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 60, 5, 1),
        ]
    )
    row = only(found.collectives)
    call = "vllm::all_reduce"
    assert told(row) == ("all_reduce", "all_reduce", call, "float32", 1024, None, "operator")


def test_expert_parallelism_is_an_all_to_all_of_unknown_size(read: Any, events: Any) -> None:
    dispatch = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)"
    notify = "void deep_ep::intranode::notify_dispatch<8>(int const*)"
    layout = "void deep_ep::layout::get_dispatch_layout<8>(long const*)"
    found = read(
        [
            events.op("deep_ep::dispatch", 0, 100, **events.shaped([[64]], ["float"])),
            *(events.launch(10 * n, n) for n in (1, 2, 3)),
            events.kernel(layout, 20, 2, 1),
            events.kernel(notify, 30, 2, 2),
            events.kernel(dispatch, 40, 9, 3),
        ]
    )
    rows = [told(row) for row in found.collectives]
    assert rows == [
        (None, None, "notify_dispatch", None, None, None, "kernel-name"),
        ("all_to_all", None, "dispatch", None, None, None, "kernel-name"),
    ]
    assert [k["kind"] for k in found.kernels] == ["compute", "communication", "communication"]
    assert "untold-operations" not in found.notes


def test_the_barriers_of_an_operation_are_none_of_it(read: Any, events: Any) -> None:
    found = read(
        [
            events.op(
                "symm_mem::_low_contention_all_gather", 0, 100, **events.shaped([[8]], ["float"])
            ),
            events.launch(10, 1),
            events.kernel("c10d::symmetric_memory::barrier_kernel(unsigned int**)", 11, 2, 1),
            *(events.launch(20 + n, 2 + n) for n in range(2)),
            events.copy("Memcpy PtoP (Device -> Device)", 31, 5, correlation=3, bytes=32),
            events.copy("Memcpy PtoP (Device -> Device)", 25, 5, correlation=2, bytes=32),
        ],
        distributedInfo={"rank": 0, "world_size": 4, "pg_config": WORLD},
    )
    barrier, gather = found.collectives
    assert (barrier["op"], barrier["executed"], barrier["call"]) == ("barrier", None, "barrier")
    assert (gather["op"], gather["executed"]) == ("all_gather", "all_gather")
    assert gather["name"] == "Memcpy PtoP (Device -> Device)"
    assert (gather["in_bytes"], gather["size_bytes"]) == (32, 128)
    assert (gather["launch_ns"], gather["start_ns"], gather["duration_ns"]) == (
        20_000,
        25_000,
        11_000,
    )


def test_copies_from_each_peer_are_one_gathering(read: Any, events: Any) -> None:
    def pulled(peer: int) -> Any:
        copy = events.copy("Memcpy PtoP (Device -> Device)", 10 * peer, 8, correlation=peer)
        del copy["args"]["device"]
        copy["args"] |= {"fromDevice": peer, "inDevice": 0, "toDevice": 0}
        return copy

    gather = "symm_mem::_low_contention_all_gather"
    found = read(
        [
            events.op(gather, 0, 9, **events.shaped([[8]], ["float"])),
            *(event for peer in (1, 2, 3) for event in (events.launch(peer, peer), pulled(peer))),
        ],
        distributedInfo={"rank": 0, "world_size": 4, "pg_config": WORLD},
    )
    (row,) = found.collectives
    assert (row["device"], row["size_bytes"]) == ("cuda:0", 128)
    assert (row["start_ns"], row["duration_ns"]) == (10_000, 28_000)


def nccl_call(events: Any, ts: float, name: str = "_allgather_base") -> list[Any]:
    args = {"Collective name": name, "In msg nelems": 8, "Out msg nelems": 32, "dtype": "Float"}
    group = {"Group size": 4, "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}
    return [
        events.op(f"c10d::{name}_", ts, 50),
        events.op("record_param_comms", ts + 5, 40, **args, **group),
    ]


def test_nccl_may_gather_by_copies_alone(read: Any, events: Any) -> None:
    found = read(
        [
            *nccl_call(events, 0),
            events.launch(10, 1),
            events.copy("Memcpy PtoP (Device -> Device)", 20, 5, correlation=1, bytes=32),
            *nccl_call(events, 100),
            events.launch(110, 2),
            events.copy("Memcpy PtoP (Device -> Device)", 120, 5, correlation=2, bytes=32),
            events.launch(115, 3),
            events.kernel("ncclDevKernel_AllGather_RING_LL(x)", 125, 5, 3),
            *nccl_call(events, 200),
            events.launch(210, 4),
            events.copy("Memcpy DtoD (Device -> Device)", 220, 5, correlation=4, bytes=32),
            events.launch(300, 5),
            events.copy("Memcpy PtoP (Device -> Device)", 320, 5, correlation=5, bytes=32),
        ]
    )
    copied, kernel = found.collectives
    assert (copied["start_ns"], copied["name"]) == (20_000, "Memcpy PtoP (Device -> Device)")
    assert (copied["op"], copied["size_bytes"], copied["group"]) == ("all_gather", 128, "0")
    assert copied["provenance"] == "record_param_comms"
    assert (kernel["start_ns"], kernel["op"]) == (125_000, "all_gather")


def test_records_of_others_are_not_batched_into_a_custom_kernel(read: Any, events: Any) -> None:
    send = {"Collective name": "send", "In msg nelems": 8, "Group size": 2, "dtype": "Float"}
    found = read(
        [
            events.op("record_param_comms", 0, 5, **send),
            events.launch(10, 1),
            events.kernel("void cross_device_reduce_1stage<float, 2>(x)", 20, 5, 1),
            events.launch(30, 2),
            events.kernel("ncclDevKernel_SendRecv(x)", 40, 5, 2),
        ]
    )
    custom, batched = found.collectives
    assert (custom["op"], batched["op"]) == ("all_reduce", "send")


def test_the_fast_reading_keeps_these_operators(tmp_path: Path, events: Any) -> None:
    operators = [
        "symm_mem::two_shot_all_reduce_",
        "_C_custom_ar::all_reduce",
        "deep_ep::dispatch",
        "vllm::all_reduce",
        "sglang::outplace_all_reduce",
        "c10d::allreduce_",
    ]
    trace = {
        "deviceProperties": [{"id": 0}],
        "traceEvents": [
            *(events.op(name, 10 * n, 5) for n, name in enumerate(["aten::mm", *operators])),
            events.launch(100, 1),
            events.kernel("void two_shot_all_reduce_kernel<float, 16, 4>(x)", 120, 5, 1),
            events.kernel("void my_mm(x)", 130, 5, 2),
        ],
    }
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(trace, indent=1))
    for fast in (True, False):
        calls = scan(path, fast=fast).calls
        kernel = "void two_shot_all_reduce_kernel<float, 16, 4>(x)"
        assert [call.name for call in calls] == [*operators, kernel]
