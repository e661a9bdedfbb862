"""Whose trace it is, what job it is of, which groups there are."""

from __future__ import annotations

from typing import Any

import pytest

PAIRS = [
    {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo,cuda:gloo",
     "pg_size": 4, "ranks": [0, 1, 2, 3]},
    {"pg_name": "7", "pg_desc": "tp", "backend_config": "cpu:gloo,cuda:nccl",
     "pg_size": 2, "ranks": [2, 0]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "rank", "provenance"),
    [
        ("rank3.json", 3, "file-name"),
        ("trace_8_rank_1.json", 1, "file-name"),
        ("sampled_rank-12.json", 12, "file-name"),
        ("worker3.1700000000.pt.trace.json", 3, "file-name"),
        ("Rank5_step7.json", 5, "file-name"),
        ("host_4711.1700000000.pt.trace.json", 0, "assumed"),
        ("local_rank3.json", 0, "assumed"),
        ("nranks8.json", 0, "assumed"),
    ],
)
def test_rank_from_a_file_name(read: Any, file: str, rank: int, provenance: str) -> None:
    found = read([], file)
    assert found.ranks[0]["rank"] == rank
    assert found.ranks[0]["rank_provenance"] == provenance
    assert set(found.notes) == {
        "rank-from-filename" if provenance == "file-name" else "rank-assumed"
    }


@pytest.mark.parametrize("info", [{"rank": 5}, {"rank": 5, "world_size": 8, "backend": "nccl"}])
def test_metadata_outranks_the_file_name(read: Any, info: dict[str, Any]) -> None:
    found = read([], "rank3.json", distributedInfo=info)
    row = found.ranks[0]
    assert (row["rank"], row["rank_provenance"]) == (5, "metadata")
    assert (row["world_size"], row["backend"]) == (info.get("world_size"), info.get("backend"))
    assert found.notes == {}


def called(rank: int, ranks: str, name: str = "allreduce") -> dict[str, Any]:
    args = {"Collective name": name, "Rank": rank, "Process Group Ranks": ranks}
    its = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1}
    return {**its, "ts": 10 + 10 * rank, "dur": 5, "args": args}


def test_calls_tell_the_rank_that_metadata_lack(read: Any) -> None:
    """The root of a broadcast, which is recorded as its rank, does not."""
    found = read([called(1, "[4, 6]"), called(0, "[4, 6]", "broadcast")], "rank3.json")
    assert (found.ranks[0]["rank"], found.ranks[0]["rank_provenance"]) == (6, "calls")
    assert found.notes == {}


@pytest.mark.parametrize(
    ("more", "calls", "rank", "provenance"),
    [
        ({}, [called(0, "[0, 1]", "broadcast"), called(1, "[0, 1]")], 1, "calls"),
        ({}, [called(0, "[0, 1]", "broadcast")], 3, "file-name"),
        ({"commtrace": {"rank": 1}}, [called(0, "[0, 1]", "broadcast")], 1, "metadata"),
    ],
)
def test_kinetos_guess_is_the_root_of_the_first_broadcast(
    read: Any, more: dict[str, Any], calls: list[dict[str, Any]], rank: int, provenance: str
) -> None:
    """As where the profiler starts before the default group: PyTorch adds no metadata then."""
    guess = {"backend": "nccl", "rank": 0, "world_size": 2, "nccl_version": "unknown"}
    row = read(calls, "rank3.json", distributedInfo=guess, **more).ranks[0]
    assert (row["rank"], row["rank_provenance"]) == (rank, provenance)
    assert row["world_size"] == 2


def test_a_file_of_several_ranks_is_noted(read: Any) -> None:
    found = read([called(0, "[0, 1]"), called(1, "[0, 1]")], distributedInfo={"rank": 0})
    assert found.ranks[0]["rank"] == 0
    assert "ranks 0–1" in found.notes["several-ranks"]


def test_a_tool_that_writes_its_global_rank_with_all_calls(read: Any) -> None:
    """It is no number in a group of four, and neither the peer of a message nor a root."""
    calls = [called(5, "[4, 5, 6, 7]"), called(5, "[1, 5, 9]", "send")]
    found = read([*calls, called(5, "[1, 5, 9]", "coalesced")], "a.json")
    assert (found.ranks[0]["rank"], found.ranks[0]["rank_provenance"]) == (5, "calls")
    assert found.notes == {}
    low = [called(2, "[0, 1, 2, 3]"), called(2, "[2, 4, 6]", "coalesced")]
    assert read(low, distributedInfo={"rank": 2}).notes == {}


def test_a_tool_that_writes_it_with_all_but_messages(read: Any) -> None:
    calls = [called(1, "[0, 1]"), called(1, "[1, 3]"), called(0, "[1, 5, 9]", "send")]
    found = read(calls, distributedInfo={"rank": 1})
    assert found.ranks[0]["rank"] == 1
    assert found.notes == {}


def test_a_wait_is_of_no_group(read: Any) -> None:
    calls = [called(1, "[0, 1, 2, 3]"), called(1, "[1, 5]"), called(1, "[]", "wait")]
    found = read(calls, distributedInfo={"rank": 1})
    assert found.ranks[0]["rank"] == 1
    assert found.notes == {}


def test_own_number_in_one_group_may_be_the_peers_in_another(read: Any) -> None:
    found = read([called(1, "[0, 1]"), called(1, "[1, 3]", "send")], distributedInfo={"rank": 1})
    assert found.notes == {}


@pytest.mark.parametrize("info", [None, [], "nccl", {"rank": "1"}, {"rank": -1}, {"rank": True}])
def test_unusable_metadata_is_as_good_as_none(read: Any, info: Any) -> None:
    row = read([], "rank3.json", distributedInfo=info).ranks[0]
    assert (row["rank"], row["rank_provenance"], row["world_size"]) == (3, "file-name", None)


def test_a_damaged_world_size_is_noted(read: Any) -> None:
    found = read([], distributedInfo={"rank": 1, "world_size": 2**62})
    assert found.ranks[0]["world_size"] is None
    assert found.notes == {"bad-metadata": f"world_size is {2**62}: taken as unknown"}


def test_a_rank_outside_its_world_is_noted(read: Any) -> None:
    found = read([], distributedInfo={"rank": 9, "world_size": 8})
    assert found.notes == {"inconsistent-metadata": "rank 9 in a world of 8 ranks"}


def test_what_the_recorder_adds_fills_the_gaps(read: Any) -> None:
    ours = {"rank": 2, "world_size": 4, "backend": "gloo", "host": "alpha", "groups": PAIRS}
    found = read([], commtrace=ours)
    row = found.ranks[0]
    assert (row["rank"], row["world_size"], row["backend"], row["host"]) == (2, 4, "gloo", "alpha")
    assert [group["group"] for group in found.groups] == ["0", "7"]


def test_groups_are_listed_with_ascending_ranks(read: Any) -> None:
    found = read([], distributedInfo={"rank": 0, "world_size": 4, "pg_config": PAIRS})
    assert found.groups == [
        {"rank": 0, "group": "0", "description": "default_pg", "backend": "gloo", "size": 4,
         "ranks": "0,1,2,3"},
        {"rank": 0, "group": "7", "description": "tp", "backend": "cpu:gloo,cuda:nccl", "size": 2,
         "ranks": "0,2"},
    ]  # fmt: skip


def test_an_empty_list_of_ranks_means_everyone(read: Any) -> None:
    config = [{"pg_name": "0", "pg_size": 3, "ranks": []}]
    found = read([], distributedInfo={"rank": 0, "world_size": 3, "pg_config": config})
    assert found.groups[0]["ranks"] == "0,1,2"


def test_unreadable_groups_are_counted(read: Any) -> None:
    config = [None, {"pg_name": "0", "pg_size": "x"}, {"pg_name": "1", "ranks": [0]}]
    found = read([], distributedInfo={"rank": 0, "pg_config": config})
    assert [group["group"] for group in found.groups] == ["1"]
    assert found.notes["unreadable-groups"].startswith("2 ")


def test_the_extent_is_that_of_the_events_kept(read: Any, events: Any) -> None:
    found = read(
        [events.kernel("gemm", 10, 5), events.note("forward", 4, 2)],
        baseTimeNanoseconds=1_000_000,
        host_name="beta",
    )
    row = found.ranks[0]
    assert (row["start_ns"], row["end_ns"]) == (1_004_000, 1_015_000)
    assert (row["events"], row["host"]) == (2, "beta")
    assert read([]).ranks[0]["start_ns"] is None


def test_a_backend_for_each_type_of_device_has_no_name_of_its_own(read: Any, events: Any) -> None:
    """``init_process_group("cpu:gloo")`` is "undefined" to torch."""
    info = {"rank": 0, "world_size": 2, "backend": "undefined"}
    (row,) = read([events.note("gloo:barrier", 0, 5)], distributedInfo=info).ranks
    assert row["backend"] is None


@pytest.mark.parametrize(
    ("devices", "model"),
    [
        ([{"id": 0, "name": "NVIDIA A10"}, {"id": 1, "name": "NVIDIA A10"}], "NVIDIA A10"),
        ([{"id": 0, "name": "NVIDIA A10"}, {"id": 1, "name": "NVIDIA L4"}], None),
        ([{"id": 0}], None),
        ([{"name": 7}, "x"], None),
        ([], None),
        ("x", None),
    ],
)
def test_the_gpus_of_a_rank_are_of_one_model_or_of_none(
    read: Any, devices: Any, model: str | None
) -> None:
    assert read([], deviceProperties=devices).ranks[0]["gpu"] == model
