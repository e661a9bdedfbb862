"""Collectives on the CPU: which of gloo's work belongs to which call."""

from __future__ import annotations

from typing import Any

import pytest

WORLD = [{"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]}]
TWO = [*WORLD, {"pg_name": "1", "pg_size": 2, "ranks": [0, 2]}]


def info(groups: list[Any], rank: int = 0) -> dict[str, Any]:
    return {"rank": rank, "world_size": 4, "backend": "gloo", "pg_config": groups}


@pytest.fixture
def gloo(events: Any) -> Any:
    """Builders of one call and of its work."""

    class Gloo:
        @staticmethod
        def call(name: str, ts: float, dims: list[Any], inputs: list[str] | None = None) -> Any:
            types = ["TensorList" if d and isinstance(d[0], list) else "" for d in dims]
            return events.op(f"c10d::{name}", ts, 5, **events.shaped(dims, types, inputs))

        @staticmethod
        def base(name: str, ts: float, out: list[int], source: list[int]) -> Any:
            shaped = events.shaped([out, source, []], ["float", "float", ""])
            return events.op(f"c10d::{name}", ts, 5, **shaped)

        @staticmethod
        def work(name: str, ts: float, dur: float, *dims: list[int], tid: int = 50) -> Any:
            shaped = events.shaped(list(dims), ["float"] * len(dims)) if dims else {}
            return events.note(f"gloo:{name}", ts, dur, tid, **shaped)

    return Gloo


def test_a_call_and_its_work_are_one_row(read: Any, gloo: Any, events: Any) -> None:
    found = read(
        [
            events.note("ProfilerStep#3", 0, 8),
            gloo.call("allreduce_", 1, [[[10, 5]], []]),
            gloo.work("all_reduce", 9, 20, [10, 5]),
        ],
        distributedInfo=info(WORLD),
    )
    (row,) = found.collectives
    assert row == {
        "step": 3,
        "group": "0",
        "seq": None,
        "rank": 0,
        "op": "all_reduce",
        "executed": "all_reduce",
        "call": "c10d::allreduce_",
        "dtype": "float32",
        "size_bytes": 200,
        "in_bytes": 200,
        "out_bytes": 200,
        "group_size": 4,
        "device": "cpu",
        "stream": 50,
        "peer": None,
        "root": None,
        "asynchronous": None,
        "launch_ns": 1_000,
        "thread": 1,
        "start_ns": 9_000,
        "duration_ns": 20_000,
        "name": "gloo:all_reduce",
        "provenance": "operator",
        "group_provenance": "only-group",
        "comms_id": None,
        "called_at": None,
    }
    assert found.notes == {}


def test_what_a_sparse_tensor_sends_is_unknown(read: Any, gloo: Any) -> None:
    """Its shape is that of all rows, most of which are not sent."""
    found = read(
        [gloo.call("allreduce_", 0, [[[50]]]), gloo.work("sparse_all_reduce", 8, 20, [50])],
        distributedInfo=info(WORLD),
    )
    (row,) = found.collectives
    assert (row["op"], row["call"]) == ("all_reduce", "c10d::allreduce_")
    assert row["size_bytes"] is row["in_bytes"] is row["out_bytes"] is None


def test_each_operation_has_its_bytes(read: Any, gloo: Any) -> None:
    """(in, out, S) on rank 0 of 4, which is the root of the gather and not of the scatter."""
    rooted = ["", "", "", "0"]
    away = ["", "", "", "1"]
    cases = [
        (gloo.call("broadcast_", 0, [[[5]]]), gloo.work("broadcast", 1, 1, [5]), (20, 20, 20)),
        (gloo.call("reduce_", 0, [[[5]]]), gloo.work("reduce", 1, 1, [5]), (20, 20, 20)),
        (gloo.call("allgather_", 0, [[], [[7]]]), gloo.work("all_gather", 1, 1, [7]),
         (28, 112, 112)),
        (gloo.base("_allgather_base_", 0, [28], [7]), gloo.work("all_gather", 1, 1, [7]),
         (28, 112, 112)),
        (gloo.base("alltoall_base_", 0, [10], [4]), gloo.work("all_to_all", 1, 1, [4]),
         (16, 40, 40)),
        (gloo.call("alltoall_", 0, [[[3], [3]], [[3], [3]]]),
         gloo.work("all_to_all", 1, 1, [3], [3]), (24, 24, 24)),
        (gloo.call("gather_", 0, [[], [[13]], [], []], rooted), gloo.work("gather", 1, 1, [13]),
         (52, 208, 208)),
        (gloo.call("gather_", 0, [[], [[13]], [], []], away), gloo.work("gather", 1, 1, [13]),
         (52, 0, 208)),
        (gloo.call("send", 0, [[[6]], [], [], []], ["", "", "2"]), gloo.work("send", 1, 1, [6]),
         (24, 0, 24)),
        (gloo.call("recv_", 0, [[[6]], [], [], []], ["", "", "2"]), gloo.work("recv", 1, 1, [6]),
         (0, 24, 24)),
        (gloo.call("allreduce_coalesced_", 0, [[[3], [4]]]),
         gloo.work("all_reduce", 1, 1, [3], [4]), (28, 28, 28)),
        # Of a list of more than 30 tensors the profiler records no shapes.
        (gloo.call("allreduce_coalesced_", 0, [[]]),
         gloo.work("all_reduce", 1, 1, [3], [4]), (28, 28, 28)),
        (gloo.call("allreduce_", 0, [[[]]]), gloo.work("all_reduce", 1, 1, []), (4, 4, 4)),
    ]  # fmt: skip
    for call, work, sizes in cases:
        (row,) = read([call, work], distributedInfo=info(WORLD)).collectives
        assert (row["in_bytes"], row["out_bytes"], row["size_bytes"]) == sizes, call["name"]
        assert (row["group_size"], row["dtype"]) == (4, "float32"), call["name"]


def test_a_barrier_has_no_size_and_a_scatters_work_no_shape(read: Any, gloo: Any) -> None:
    found = read(
        [
            gloo.base("barrier", 0, [1], []),
            gloo.work("barrier", 1, 1),
            gloo.call("scatter_", 10, [[[15]], [], [], []], ["", "", "", "1"]),
            gloo.work("scatter", 11, 1),
        ],
        distributedInfo=info(WORLD),
    )
    barrier, scatter = found.collectives
    assert (barrier["op"], barrier["size_bytes"], barrier["dtype"]) == ("barrier", None, None)
    assert (scatter["op"], scatter["root"]) == ("scatter", 1)
    assert scatter["dtype"] is None  # only the flight recorder knows it


def test_a_monitored_barrier_is_its_callers_and_its_messages_are_none(
    read: Any, gloo: Any, events: Any
) -> None:
    """Rank 0 hears from all, then answers them, on the caller's own thread."""
    found = read(
        [
            gloo.call("send", 0, [[[5]], []], ["", "1"]),
            gloo.work("send", 1, 1, [5]),
            events.op("c10d::monitored_barrier_", 10, 40),
            *(gloo.work("recv", 11 + i, 5, [1], tid=1) for i in range(3)),
            *(gloo.work("send", 20 + i, 25, [1], tid=1) for i in range(3)),
        ],
        distributedInfo=info(WORLD),
    )
    sent, barrier = found.collectives
    assert (sent["op"], sent["size_bytes"], sent["thread"]) == ("send", 20, 1)
    assert (barrier["op"], barrier["thread"], barrier["provenance"]) == ("barrier", 1, "operator")
    assert (barrier["duration_ns"], barrier["size_bytes"]) == (40_000, None)
    assert barrier["launch_ns"] == barrier["start_ns"]


def test_reduce_scatter_runs_as_all_reduce(read: Any, gloo: Any) -> None:
    found = read(
        [
            gloo.base("_reduce_scatter_base_", 0, [9], [36]),
            gloo.work("all_reduce", 1, 1, [36]),
            gloo.call("reduce_scatter_", 10, [[[9]], []]),
            *(gloo.work("all_reduce", 11 + i, 3, [9], tid=50 + i % 2) for i in range(4)),
            gloo.call("reduce_scatter_tensor_coalesced_", 30, [[[5], [6]], [[20], [24]]]),
            gloo.work("all_reduce", 31, 1, [24]),
            gloo.work("all_reduce", 32, 9, [20]),
        ],
        distributedInfo=info(WORLD),
    )
    rows = [
        (r["in_bytes"], r["out_bytes"], r["start_ns"], r["duration_ns"]) for r in found.collectives
    ]
    assert rows == [(144, 36, 1_000, 1_000), (144, 36, 11_000, 6_000), (176, 44, 31_000, 10_000)]
    assert {(r["op"], r["executed"]) for r in found.collectives} == {
        ("reduce_scatter", "all_reduce")
    }


def test_shards_are_counted_where_the_group_is_unknown(read: Any, gloo: Any) -> None:
    trace = []
    for ts in (0, 100):
        trace.append(gloo.call("reduce_scatter_", ts, [[[9]], []]))
        trace += [gloo.work("all_reduce", ts + 1 + i, 1, [9]) for i in range(2)]
    found = read(trace, distributedInfo=info(TWO))
    assert [(r["group_size"], r["size_bytes"]) for r in found.collectives] == [(2, 72), (2, 72)]
    assert [r["group"] for r in found.collectives] == [None, None]


def test_work_goes_to_the_earliest_call_that_asked_for_it(read: Any, gloo: Any) -> None:
    found = read(
        [
            gloo.call("allreduce_", 0, [[[10]]]),
            gloo.call("allreduce_", 10, [[[20]]]),
            gloo.call("allreduce_", 20, [[[10]]]),
            gloo.work("all_reduce", 30, 100, [20], tid=51),
            gloo.work("all_reduce", 40, 5, [10], tid=50),
            gloo.work("all_reduce", 60, 5, [10], tid=50),
        ],
        distributedInfo=info(WORLD),
    )
    pairs = {r["launch_ns"]: (r["start_ns"], r["size_bytes"]) for r in found.collectives}
    assert pairs == {0: (40_000, 40), 10_000: (30_000, 80), 20_000: (60_000, 40)}


def test_a_call_that_calls_itself_anew_is_one(read: Any, gloo: Any, events: Any) -> None:
    """As under a TorchDispatchMode: the work belongs to the inner one."""
    calls = []
    for ts in (0, 100):
        outer = gloo.call("allreduce_", ts, [[[5]]]) | {"dur": 20}
        calls += [outer, gloo.call("allreduce_", ts + 9, [[[5]]])]
    works = [gloo.work("all_reduce", 30, 80, [5]), gloo.work("all_reduce", 112, 7, [5], tid=51)]
    found = read([*calls, *works], distributedInfo=info(WORLD))
    assert [row["launch_ns"] for row in found.collectives] == [9_000, 109_000]
    assert [row["start_ns"] for row in found.collectives] == [30_000, 112_000]
    assert found.notes == {}


def test_calls_without_work_are_noted_and_work_without_call_kept(read: Any, gloo: Any) -> None:
    found = read(
        [
            gloo.work("all_reduce", 0, 5, [10]),
            gloo.call("allreduce_", 20, [[[10]]]),
        ],
        distributedInfo=info(WORLD),
    )
    (row,) = found.collectives
    assert (row["provenance"], row["call"]) == ("annotation", "gloo:all_reduce")
    assert (row["launch_ns"], row["size_bytes"], row["op"]) == (None, 40, "all_reduce")
    assert found.notes["unfinished-operations"].startswith("1 ")


def test_without_recorded_shapes_calls_still_find_their_work(read: Any, events: Any) -> None:
    found = read(
        [
            events.op("c10d::allreduce_", 0, 5),
            events.note("gloo:all_reduce", 1, 5, 50),
            events.op("c10d::_reduce_scatter_base_", 10, 5),
            events.note("gloo:all_reduce", 11, 5, 50),
        ],
        distributedInfo=info(WORLD),
    )
    assert [(r["op"], r["size_bytes"]) for r in found.collectives] == [
        ("all_reduce", None),
        ("reduce_scatter", None),
    ]
    assert found.notes == {}


@pytest.mark.parametrize("off_ns", [0, 4_500, -1_500])
def test_the_flight_recorder_tells_group_and_number(read: Any, gloo: Any, off_ns: int) -> None:
    """Also where its clock went on otherwise than the profiler's, and no call holds an entry."""

    def entry(ns: int, seq: int, group: str, name: str = "gloo:all_reduce") -> dict[str, Any]:
        return {
            "profiling_name": name,
            "process_group": [group, "x"],
            "time_created_ns": ns + off_ns,
            "collective_seq_id": seq,
            "p2p_seq_id": 99,
            "is_p2p": False,
            "input_dtypes": ["Long"],
            "called_at": f"train.py:{seq} in main",
        }

    entries = [entry(2_000, 7, "1"), entry(12_000, 4, "0"), entry(22_000, 5, "0", "gloo:scatter")]
    found = read(
        [
            gloo.call("allreduce_", 1, [[[10]]]),
            gloo.work("all_reduce", 8, 1, [10]),
            gloo.call("allreduce_", 10, [[[10]]]),
            gloo.work("all_reduce", 18, 1, [10]),
            gloo.call("scatter_", 20, [[[15]], []]),
            gloo.work("scatter", 28, 1),
        ],
        distributedInfo=info(TWO),
        commtrace={"flight_recorder": {"entries": entries}},
    )
    rows = [(r["group"], r["seq"], r["group_size"], r["dtype"]) for r in found.collectives]
    assert rows == [("1", 7, 2, "float32"), ("0", 4, 4, "float32"), ("0", 5, 4, "int64")]
    assert {r["group_provenance"] for r in found.collectives} == {"flight-recorder"}
    lines = [r["called_at"] for r in found.collectives]
    assert lines == [f"train.py:{seq} in main" for seq in (7, 4, 5)]


@pytest.mark.parametrize(
    ("noted_us", "numbers"),
    [
        ((21.0,), [1, None]),  # soon behind the first call
        ((80.0,), [None, None]),  # between both
        ((199.0,), [None, 1]),
        ((12.0, 21.0), [1, None]),  # the first has one of its own
        ((21.0, 22.0), [None, None]),
        ((260.0,), [None, None]),  # too late
    ],
)
def test_an_entry_beside_two_calls_is_of_the_near_one(
    read: Any, gloo: Any, noted_us: tuple[float, ...], numbers: list[int | None]
) -> None:
    entries = [
        {
            "profiling_name": "gloo:all_reduce",
            "process_group": ["1", "x"],
            "time_created_ns": round(1_000 * us),
            "collective_seq_id": 1,
        }
        for us in noted_us
    ]
    found = read(
        [
            gloo.call("allreduce_", 15, [[[10]]]) | ({"ts": 10, "dur": 10}),
            gloo.work("all_reduce", 30, 1, [10]),
            gloo.call("allreduce_", 200, [[[10]]]),
            gloo.work("all_reduce", 210, 1, [10]),
        ],
        distributedInfo=info(TWO),
        commtrace={"flight_recorder": {"entries": entries}},
    )
    assert [row["seq"] for row in found.collectives] == numbers


def test_a_peer_is_told_where_only_one_group_fits(read: Any, gloo: Any) -> None:
    """Of the groups (0, 1, 2, 3) and (0, 2) only the first has a rank 3; both have a rank 1."""
    trace = []
    for ts, peer in ((0, "3"), (10, "1")):
        trace.append(gloo.call("send", ts, [[[6]], [], [], []], ["", "", peer, "0"]))
        trace.append(gloo.work("send", ts + 1, 1, [6]))
    rows = read(trace, distributedInfo=info(TWO)).collectives
    assert [(r["group"], r["peer"]) for r in rows] == [("0", 3), (None, None)]


def test_calls_that_nccl_ran_are_not_gloos(read: Any, gloo: Any, events: Any) -> None:
    found = read(
        [
            gloo.call("allreduce_", 0, [[[10]]]),
            events.op("record_param_comms", 1, 3),
            events.note("nccl:all_reduce", 2, 1),
            gloo.call("allreduce_", 10, [[[10]]]),
            gloo.work("all_reduce", 16, 1, [10]),
        ],
        distributedInfo=info(WORLD),
    )
    assert [r["launch_ns"] for r in found.collectives] == [10_000]
    assert found.notes == {}


@pytest.mark.parametrize(("told", "known"), [("True", 1), ("False", 0), ("", None)])
def test_a_call_tells_whether_it_is_asynchronous(
    read: Any, gloo: Any, told: str, known: int | None
) -> None:
    call = gloo.call("allreduce_", 1, [[[10]], [], [], [], [], []], ["", "", "", "", told, "-1"])
    (row,) = read([call, gloo.work("all_reduce", 9, 20, [10])]).collectives
    assert row["asynchronous"] == known


def test_on_a_cpu_a_group_of_one_rank_works_too(read: Any, gloo: Any) -> None:
    """So that two groups of the whole world leave the size open where there is one."""
    twice = [*WORLD, {**WORLD[0], "pg_name": "1"}]
    alone = {"pg_name": "2", "pg_size": 1, "ranks": [0]}
    trace = [gloo.call("broadcast_", 0, [[[5]]]), gloo.work("broadcast", 1, 1, [5])]
    for groups, size in ((twice, 4), ([*twice, alone], None)):
        (row,) = read(trace, distributedInfo=info(groups)).collectives
        assert (row["group"], row["group_size"]) == (None, size)


def test_what_was_recorded_before_the_recorders_steps_is_left_out(
    read: Any, gloo: Any, events: Any
) -> None:
    """A profile goes on while messages are on their way; other ranks' begin with the step."""
    found = [
        events.op("aten::mm", 10, 5),
        gloo.call("allreduce_", 20, [[[10, 5]], []]),
        gloo.work("all_reduce", 21, 20, [10, 5]),
        events.note("ProfilerStep#5", 100, 50),
        events.op("aten::mm", 105, 5),
        gloo.call("allreduce_", 120, [[[10, 5]], []]),
        gloo.work("all_reduce", 121, 20, [10, 5]),
    ]
    whole = read(found, distributedInfo=info(WORLD))
    assert len(whole.collectives) == 2
    told = {"steps": [5, 5], "partial": None}
    left = read(found, distributedInfo=info(WORLD), commtrace=told)
    assert [row["step"] for row in left.collectives] == [5]
    assert all(row["start_ns"] >= left.steps[0]["start_ns"] for row in left.ops)
    assert left.notes["before-steps"].startswith("5 events from before")
    begun_later = read(found, distributedInfo=info(WORLD), commtrace={"steps": [4, 5]})
    assert len(begun_later.collectives) == 2, "no such step: nobody knows when it began"
