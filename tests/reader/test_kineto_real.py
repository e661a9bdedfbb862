"""Public traces against a plain reading of the same files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")


@pytest.fixture(scope="module")
def opened(real_traces: Path, reference_scan: Any, plain_tables: Any) -> Any:
    """A trace's tables, and its complete events."""

    @cache
    def both(name: str) -> tuple[Any, list[dict[str, Any]]]:
        path = real_traces / f"{name}.json.gz"
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        complete = [event for event in events if event.get("ph") == "X"]
        return plain_tables(reference_scan(path)), complete

    return both


def is_nccl(event: dict[str, Any]) -> bool:
    return event["cat"] == "kernel" and event["name"].startswith("nccl")


@pytest.mark.parametrize(
    "name",
    [
        "gpupuzzlers_streams_copies",
        "hta_16gpu_three_nccl_streams",
        "hta_a100_resnet_nccl_metadata",
        "hta_cpu_only_gloo_rank34",
        "hta_cuda_event_sync",
        "hta_dlrm_2_of_128/sampled_rank-0",
        "hta_dlrm_2_of_128/sampled_rank-1",
        "hta_v100_allreduce_no_metadata",
        "tracelens_mi300_resnet_rccl",
    ],
)
def test_every_gpu_event_is_in_exactly_one_table(opened: Any, name: str) -> None:
    tables, events = opened(name)
    assert len(tables.kernels) == sum(e["cat"] == "kernel" for e in events)
    assert len(tables.copies) == sum(e["cat"] in COPIES for e in events)
    kinds = Counter(row["kind"] for row in tables.kernels)
    assert kinds["communication"] == sum(map(is_nccl, events))
    on_gpu = [row for row in tables.collectives if row["device"] != "cpu"]
    assert len(on_gpu) == kinds["communication"]


def test_a100_has_its_kernels_metadata(opened: Any) -> None:
    tables, events = opened("hta_a100_resnet_nccl_metadata")
    width = {"Float": 4, "Long": 8}
    told = Counter(
        (e["args"]["Collective name"], e["args"]["In msg nelems"] * width[e["args"]["dtype"]])
        for e in filter(is_nccl, events)
    )
    assert Counter((r["call"], r["size_bytes"]) for r in tables.collectives) == told
    assert {r["provenance"] for r in tables.collectives} == {"kernel"}
    assert {(r["group"], r["group_size"]) for r in tables.collectives} == {("0", 2)}
    assert {row["step"] for row in tables.kernels} == {4, 5, 6}


def test_mi300_tells_12_of_17(opened: Any) -> None:
    tables, _ = opened("tracelens_mi300_resnet_rccl")
    rungs = Counter((r["provenance"], r["op"]) for r in tables.collectives)
    assert rungs == {
        ("kernel", "broadcast"): 6,
        ("kernel", "all_reduce"): 6,
        ("kernel-name", None): 5,  # launched before the window
    }
    assert {r["device"] for r in tables.collectives} == {"cuda:2"}
    assert {r["root"] for r in tables.collectives if r["op"] == "broadcast"} == {0}
    assert [g["ranks"] for g in tables.groups] == ["0,1,2,3,4,5,6,7"]
    assert set(tables.notes) == {"orphaned-kernels", "untold-operations"}


def test_16gpu_operations_come_from_annotations(opened: Any) -> None:
    tables, _ = opened("hta_16gpu_three_nccl_streams")
    assert Counter(r["op"] for r in tables.collectives) == {
        "all_to_all": 45,
        "reduce_scatter": 10,
        "all_gather": 10,
        "all_reduce": 10,
        None: 5,
    }
    sizes = {r["size_bytes"] for r in tables.collectives if r["op"] == "reduce_scatter"}
    assert sizes == {65536 * 384 * 4, 65536 * 64 * 4}


def test_dlrm_sizes_take_both_sides(opened: Any) -> None:
    tables, _ = opened("hta_dlrm_2_of_128/sampled_rank-0")
    gathers = [r for r in tables.collectives if r["op"] == "all_gather"]
    assert {(r["in_bytes"], r["out_bytes"], r["group_size"]) for r in gathers} == {
        (2**24, 2**30, 64)
    }
    exchange = max(
        (r for r in tables.collectives if r["op"] == "all_to_all"), key=lambda r: r["size_bytes"]
    )
    assert (exchange["in_bytes"], exchange["out_bytes"]) == (419430400, 382132224)
    assert exchange["size_bytes"] == 419430400


def test_v100_has_operations_without_sizes(opened: Any) -> None:
    tables, _ = opened("hta_v100_allreduce_no_metadata")
    facts = {(r["op"], r["dtype"], r["size_bytes"], r["group"]) for r in tables.collectives}
    assert facts == {("all_reduce", "float32", None, None)}
    assert len(tables.collectives) == 2020
    assert all(row["launch_ns"] is not None for row in tables.kernels)


def test_gloo_work_without_operators_is_kept(opened: Any) -> None:
    tables, _ = opened("hta_cpu_only_gloo_rank34")
    sizes = Counter((r["op"], r["size_bytes"]) for r in tables.collectives)
    assert sizes == {("all_reduce", 321271 * 4): 5, ("all_reduce", 2082411 * 4): 5}
    assert {r["provenance"] for r in tables.collectives} == {"annotation"}
    assert {r["group"] for r in tables.collectives} == {None}
    assert tables.ranks[0]["rank"] == 34


def test_streams_copies_by_memory(opened: Any) -> None:
    tables, events = opened("gpupuzzlers_streams_copies")
    plain = Counter(e["name"] for e in events if e["cat"] == "gpu_memcpy")
    kinds = Counter((c["kind"], c["memory"]) for c in tables.copies if c["kind"] != "Memset")
    assert kinds == {
        ("HtoD", "pageable"): plain["Memcpy HtoD (Pageable -> Device)"],
        ("DtoH", "pinned"): plain["Memcpy DtoH (Device -> Pinned)"],
        ("DtoH", "pageable"): plain["Memcpy DtoH (Device -> Pageable)"],
    }
