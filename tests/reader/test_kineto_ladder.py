"""Collectives on a GPU: every rung of the ladder, and what one rung lends another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Row = dict[str, Any]

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgs)"
TWO_GROUPS = [
    {"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]},
    {"pg_name": "5", "pg_size": 2, "ranks": [0, 2]},
]


def told(collective: str, ins: int, outs: int, **more: Any) -> dict[str, Any]:
    return {
        "Collective name": collective,
        "In msg nelems": ins,
        "Out msg nelems": outs,
        "Group size": 4,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, 3]",
        **more,
    }


def only(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    return row


def test_rung_one_the_kernels_arguments(read: Any, events: Any) -> None:
    args = told("_allgather_base", 100, 400, Seq=17, **{"Comms Id": 981})
    found = read(
        [
            events.launch(10, 1),
            events.kernel("ncclDevKernel_AllGather_RING_LL(x)", 20, 5, 1, stream=20, **args),
        ]
    )
    assert only(found.collectives) == {
        "step": None,
        "group": "0",
        "seq": 17,
        "rank": 0,
        "op": "all_gather",
        "executed": "all_gather",
        "call": "_allgather_base",
        "dtype": "bfloat16",
        "size_bytes": 800,
        "in_bytes": 200,
        "out_bytes": 800,
        "group_size": 4,
        "device": "cuda:0",
        "stream": 20,
        "peer": None,
        "root": None,
        "asynchronous": None,
        "launch_ns": 10_000,
        "thread": None,
        "start_ns": 20_000,
        "duration_ns": 5_000,
        "name": "ncclDevKernel_AllGather_RING_LL(x)",
        "provenance": "kernel",
        "group_provenance": "metadata",
        "comms_id": "981",
        "called_at": None,
    }


def test_rung_two_the_record_around_the_launch(read: Any, events: Any) -> None:
    found = read(
        [
            events.op("record_param_comms", 0, 100, **told("reduce", 1, 1)),
            events.op("record_param_comms", 40, 20, **told("_reduce_scatter_base", 400, 100)),
            events.op("record_param_comms", 48, 5, **told("wait", 0, 0)),
            events.op("record_param_comms", 40, 20, tid=2, **told("broadcast", 7, 7)),
            events.launch(50, 1),
            events.kernel(GENERIC, 60, 5, 1),
        ]
    )
    row = only(found.collectives)
    assert (row["op"], row["provenance"]) == ("reduce_scatter", "record_param_comms")
    assert (row["in_bytes"], row["out_bytes"], row["size_bytes"]) == (800, 200, 800)
    assert (row["group"], row["executed"]) == ("0", "reduce_scatter")


def test_rung_three_the_annotation_completed_by_the_operator(read: Any, events: Any) -> None:
    found = read(
        [
            events.op(
                "c10d::alltoall_base_",
                0,
                100,
                **events.shaped([[50], [30], [], []], ["long", "long", "", ""]),
            ),
            events.note("nccl:all_to_all", 10, 50, **events.shaped([[30]], ["long"])),
            events.launch(20, 1),
            events.kernel(SEND_RECV, 60, 5, 1),
        ]
    )
    row = only(found.collectives)
    assert (row["op"], row["executed"]) == ("all_to_all", "all_to_all")
    assert (row["call"], row["provenance"]) == ("nccl:all_to_all", "annotation")
    assert (row["in_bytes"], row["out_bytes"], row["size_bytes"]) == (240, 400, 400)
    assert (row["group"], row["group_size"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "ins", "outs"),
    [("nccl:_all_gather_base", 400, 1600), ("nccl:_reduce_scatter_base", 400, 100)],
)
def test_an_annotation_lists_inputs_alone(
    read: Any, events: Any, name: str, ins: int, outs: int
) -> None:
    trace = [
        events.note(name, 10, 50, **events.shaped([[10, 10]], ["float"])),
        events.launch(20, 1),
        events.kernel(SEND_RECV, 60, 5, 1),
    ]
    row = only(read(trace, distributedInfo={"rank": 0, "pg_config": TWO_GROUPS[:1]}).collectives)
    assert (row["in_bytes"], row["out_bytes"], row["size_bytes"]) == (ins, outs, max(ins, outs))
    assert (row["group"], row["group_size"], row["group_provenance"]) == ("0", 4, "only-group")
    row = only(read(trace, distributedInfo={"rank": 0, "pg_config": TWO_GROUPS}).collectives)
    assert (row["in_bytes"], row["out_bytes"]) == (ins, None)
    assert row["size_bytes"] == (ins if "scatter" in name else None)
    assert (row["group"], row["group_provenance"]) == (None, None)


def test_rung_four_the_operator(read: Any, events: Any) -> None:
    found = read(
        [
            events.op(
                "c10d::_allgather_base_",
                0,
                100,
                **events.shaped([[64, 3], [16, 3], []], ["c10::Half", "c10::Half", ""]),
            ),
            events.launch(20, 1),
            events.kernel(SEND_RECV, 60, 5, 1),
        ]
    )
    row = only(found.collectives)
    assert (row["op"], row["dtype"]) == ("all_gather", "float16")
    assert (row["call"], row["provenance"]) == ("c10d::_allgather_base_", "operator")
    assert (row["in_bytes"], row["out_bytes"], row["group_size"]) == (96, 384, 4)


def test_rung_five_the_kernels_name(read: Any, events: Any) -> None:
    """A broadcast's may run an all_gather of uneven parts."""
    names = (ALL_REDUCE, GENERIC, "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgs)")
    found = read([events.kernel(name, 60 + 10 * at, 5) for at, name in enumerate(names)])
    first, second, third = found.collectives
    assert (first["op"], first["executed"], first["dtype"]) == (
        "all_reduce",
        "all_reduce",
        "float32",
    )
    assert (second["op"], second["executed"], second["dtype"]) == (None, None, None)
    assert (third["op"], third["executed"]) == (None, "broadcast")
    assert {row["provenance"] for row in found.collectives} == {"kernel-name"}
    assert found.notes["untold-operations"].startswith("1 ")


def test_shapes_left_out_leave_operation_and_a_reductions_type(read: Any, events: Any) -> None:
    found = read(
        [
            events.note("nccl:all_reduce", 10, 50),
            events.launch(20, 1),
            events.kernel(ALL_REDUCE, 60, 5, 1),
        ]
    )
    row = only(found.collectives)
    assert (row["op"], row["provenance"], row["dtype"]) == ("all_reduce", "annotation", "float32")
    assert row["size_bytes"] is None


def test_called_and_executed_can_differ(read: Any, events: Any) -> None:
    kernel = events.kernel(ALL_REDUCE, 60, 5, **told("_reduce_scatter_base", 400, 100))
    row = only(read([kernel]).collectives)
    assert (row["op"], row["executed"]) == ("reduce_scatter", "all_reduce")


def test_coalesced_operations_share_their_kernel(read: Any, events: Any) -> None:
    def p2p(name: str, peer: str, ts: float) -> list[Any]:
        shapes = events.shaped(
            [[[100]], [], [], []], ["TensorList", "", "Scalar", "Scalar"], ["", "", peer, "0"]
        )
        return [
            events.op(f"c10d::{name}", ts, 8, **shapes),
            events.op("record_param_comms", ts + 1, 6, **told(name.strip("_"), 100, 100)),
        ]

    found = read(
        [
            *p2p("send", "3", 0),  # alone: its kernel is launched within its record
            events.launch(2, 1),
            events.kernel(SEND_RECV, 30, 5, 1),
            *p2p("send", "1", 10),
            *p2p("recv_", "3", 20),
            events.op("record_param_comms", 29, 1, **told("wait", 0, 0)),
            events.launch(40, 2),
            events.kernel(SEND_RECV, 50, 5, 2),
        ],
        distributedInfo={"rank": 0, "world_size": 4, "pg_config": TWO_GROUPS},
    )
    rows = [
        (r["op"], r["peer"], r["start_ns"], r["in_bytes"], r["out_bytes"])
        for r in found.collectives
    ]
    assert rows == [
        ("send", 3, 30_000, 200, 0),
        ("send", 1, 50_000, 200, 0),
        ("recv", 3, 50_000, 0, 200),
    ]
    assert {r["provenance"] for r in found.collectives} == {"record_param_comms"}
    assert {r["launch_ns"] for r in found.collectives} == {2_000, 40_000}


def test_coalesced_collectives_are_told_by_what_encloses_them(read: Any, events: Any) -> None:
    records = [
        events.op("record_param_comms", 10, 5, **told("allreduce", 10, 10)),
        events.op("record_param_comms", 20, 5, **told("allreduce", 20, 20)),
    ]
    launched = [events.launch(40, 1), events.kernel(ALL_REDUCE, 50, 5, 1)]
    found = read([*records, events.note("nccl:coalesced", 38, 6), *launched])
    assert [row["size_bytes"] for row in found.collectives] == [20, 40]
    # A launch that nothing encloses may be a graph's: earlier records prove nothing.
    row = only(read([*records, *launched]).collectives)
    assert (row["provenance"], row["size_bytes"]) == ("kernel-name", None)


def test_that_every_message_is_asynchronous_tells_nothing(read: Any, events: Any) -> None:
    told_so = told("send", 8, 8, **{"Is asynchronized op": 1})
    found = read([events.kernel(SEND_RECV, 10, 5, **told_so)])
    assert only(found.collectives)["asynchronous"] is None


@pytest.mark.parametrize(("told_so", "known"), [(1, 1), (0, 0), (True, 1), (None, None)])
def test_newer_records_tell_whether_a_call_is_asynchronous(
    read: Any, events: Any, told_so: int | None, known: int | None
) -> None:
    more = {} if told_so is None else {"Is asynchronized op": told_so}
    found = read(
        [
            events.op("record_param_comms", 10, 20, **told("allreduce", 10, 10, **more)),
            events.launch(15, 1),
            events.kernel(ALL_REDUCE, 50, 5, 1),
        ]
    )
    assert only(found.collectives)["asynchronous"] == known


def test_peer_and_root_are_global_ranks(read: Any, events: Any) -> None:
    group = {"Process Group Name": "5", "Process Group Ranks": "[0, 2]", "Group size": 2}
    found = read(
        [
            events.kernel(SEND_RECV, 10, 5, **told("recv", 8, 8, **group, **{"Src Rank": 2})),
            events.op(
                "c10d::broadcast_",
                20,
                10,
                **events.shaped(
                    [[[9]], [], [], []], ["TensorList", "", "Scalar", "Scalar"], ["", "", "1", "0"]
                ),
            ),
            events.launch(22, 1),
            events.kernel(GENERIC, 30, 5, 1, **told("broadcast", 9, 9, **group)),
        ]
    )
    received, broadcast = found.collectives
    assert (received["peer"], received["in_bytes"], received["out_bytes"]) == (2, 0, 16)
    assert (broadcast["root"], broadcast["group"]) == (2, "5")


@pytest.mark.parametrize(
    ("op", "more", "peer"),
    [
        ("send", {"Dst Rank": 2}, 2),
        ("send", {"Dst Rank": 1}, None),  # of another group
        ("recv", {"Rank": 1}, 2),
        ("recv", {"Rank": 1, "Src Rank": 2}, 2),
        ("recv", {"Rank": 2, "Src Rank": 2}, 2),  # the group has no third rank
        ("recv", {"Rank": -1}, None),
        ("recv", {"Rank": 0}, None),  # its own
        ("recv", {"Rank": 0, "Src Rank": 2}, 2),
        ("recv", {"Rank": 0, "Src Rank": 0}, None),  # nobody sends messages to itself
    ],
)
def test_nccl_names_a_peer_by_both_its_ranks(
    read: Any, events: Any, op: str, more: dict[str, int], peer: int | None
) -> None:
    group = {"Process Group Name": "5", "Process Group Ranks": "[0, 2]", "Group size": 2}
    found = read([events.kernel(SEND_RECV, 10, 5, **told(op, 8, 8, **group, **more))])
    assert only(found.collectives)["peer"] == peer


@pytest.mark.parametrize(
    ("name", "peer"), [("nccl:send 0->1", 2), ("nccl:recv 0<-1", 2), ("nccl:send", None)]
)
def test_an_annotation_names_a_messages_peer(
    read: Any, events: Any, name: str, peer: int | None
) -> None:
    op = name.removeprefix("nccl:")[:4]
    group = {"Process Group Name": "5", "Process Group Ranks": "[0, 2]", "Group size": 2}
    found = read(
        [
            events.op("record_param_comms", 1, 9, **told(op, 8, 8, **group)),
            events.note(name, 2, 6),
            events.launch(3, 1),
            events.kernel(SEND_RECV, 10, 5, 1, **told(op, 8, 8, **group)),
        ]
    )
    assert only(found.collectives)["peer"] == peer


@pytest.mark.parametrize(
    ("call", "rank", "root"),
    [
        ("broadcast", 1, 2),
        ("_broadcast_oop", 0, 0),
        ("reduce", 1, 2),
        ("_reduce_oop", 1, 2),
        ("gather", 1, 2),
        ("scatter", 1, 2),
        ("scatter", 2, None),
        ("allreduce", 1, None),
    ],
)
def test_nccl_records_a_root_as_the_rank(
    read: Any, events: Any, call: str, rank: int, root: int | None
) -> None:
    group = {"Process Group Name": "5", "Process Group Ranks": "[0, 2]", "Group size": 2}
    record = events.op("record_param_comms", 0, 10, **told(call, 8, 8, Rank=rank, **group))
    found = read([record, events.launch(5, 1), events.kernel(GENERIC, 10, 5, 1)])
    assert only(found.collectives)["root"] == root


@pytest.mark.parametrize(("inputs", "root"), [(["", "", "0", "0", "False", "-1"], 0), ([], 2)])
def test_a_calls_own_argument_tells_its_root_rather_than_the_rank_of_a_record(
    read: Any, events: Any, inputs: list[str], root: int
) -> None:
    """Other tools write the caller's."""
    group = {"Process Group Name": "5", "Process Group Ranks": "[0, 2]", "Group size": 2}
    found = read(
        [
            events.op("c10d::broadcast_", 0, 12, **{"Concrete Inputs": inputs}),
            events.op("record_param_comms", 1, 10, **told("broadcast", 8, 8, Rank=1, **group)),
            events.launch(5, 1),
            events.kernel(GENERIC, 20, 5, 1),
        ]
    )
    assert only(found.collectives)["root"] == root


@pytest.mark.parametrize(
    "config", [{"pg_name": "tp", "pg_size": 40, "ranks": list(range(0, 80, 2))}, None]
)
def test_a_cut_list_of_ranks_is_recovered(read: Any, events: Any, config: Any) -> None:
    listed = ", ".join(str(2 * n) for n in range(30))
    args = told("allreduce", 1, 1, **{
        "Process Group Name": "tp",
        "Process Group Ranks": f"[{listed}, ...]",
        "Group size": 40,
        "Global rank start": -1 if config else 0,
        "Global rank stride": -1 if config else 2,
    })  # fmt: skip
    found = read(
        [
            events.op("record_param_comms", 0, 10, **args),
            events.launch(5, 1),
            events.kernel(GENERIC, 10, 1, 1),
        ],
        distributedInfo={"rank": 0, "pg_config": [config] if config else []},
    )
    assert only(found.groups)["ranks"] == ",".join(str(n) for n in range(0, 80, 2))
    assert only(found.collectives)["group"] == "tp"


def test_what_cannot_be_recovered_is_null(read: Any, events: Any) -> None:
    args = told("allreduce", 1, 1, **{"Process Group Ranks": "[0, 5, ...]", "Group size": 40})
    found = read([events.kernel(GENERIC, 10, 1, **args)])
    assert (only(found.groups)["ranks"], only(found.groups)["size"]) == (None, 40)


def test_older_traces_number_their_groups(read: Any, events: Any) -> None:
    args = told("allreduce", 1, 1, **{"Process Group ID": 3})
    del args["Process Group Name"]
    row = only(read([events.kernel(GENERIC, 10, 1, **args)]).collectives)
    assert (row["group"], row["group_provenance"]) == ("3", "metadata")


def test_one_name_can_stand_for_two_groups(read: Any, events: Any) -> None:
    found = read(
        [
            events.kernel(GENERIC, 10, 1, **told("allreduce", 1, 1)),
            events.kernel(
                GENERIC, 20, 1,
                **told("allreduce", 1, 1, **{"Process Group Ranks": "[0, 9]", "Group size": 2}),
            ),
        ]
    )  # fmt: skip
    assert [group["ranks"] for group in found.groups] == ["0,1,2,3", "0,9"]


def test_an_unknown_type_is_noted_and_has_no_size(read: Any, events: Any) -> None:
    found = read([events.kernel(GENERIC, 10, 1, **told("allreduce", 5, 5, dtype="Posit16"))])
    row = only(found.collectives)
    assert (row["op"], row["dtype"], row["size_bytes"]) == ("all_reduce", None, None)
    assert found.notes["unknown-dtype"].startswith("1 ")


def test_absurd_numbers_are_null(read: Any, events: Any) -> None:
    args = told("allreduce", 2**62, -5, **{"Group size": 2**62, "Seq": -1})
    row = only(read([events.kernel(GENERIC, 10, 1, **args)]).collectives)
    assert (row["in_bytes"], row["out_bytes"], row["seq"]) == (None, None, None)


def test_the_flight_recorder_numbers_what_the_trace_does_not(read: Any, events: Any) -> None:
    entry = {
        "profiling_name": "nccl:all_reduce",
        "process_group": ["0", "default_pg"],
        "time_created_ns": 5_000,
        "collective_seq_id": 12,
        "called_at": "train.py:57",
    }
    found = read(
        [
            events.op("c10d::allreduce_", 0, 10),
            events.launch(6, 1),
            events.kernel(ALL_REDUCE, 20, 1, 1),
        ],
        flight_recorder={"entries": [entry, {"profiling_name": 3}]},
    )
    row = only(found.collectives)
    assert (row["group"], row["seq"], row["called_at"]) == ("0", 12, "train.py:57")
    assert row["group_provenance"] == "flight-recorder"
    assert found.notes["unreadable-flight-recorder"].startswith("1 ")


EVERYBODY = {"pg_size": 4, "ranks": [0, 1, 2, 3]}
TWO_OF_ALL = [{"pg_name": "0", **EVERYBODY}, {"pg_name": "1", **EVERYBODY}]
ALONE = {"pg_name": "2", "pg_size": 1, "ranks": [0]}
ELSEWHERE = {"pg_name": "3", "pg_size": 2, "ranks": [1, 2]}


@pytest.fixture
def sized(read: Any, events: Any) -> Callable[..., Row]:
    """The row of an all_gather of which only what went in is known."""

    def row(groups: list[Row], world_size: int | None = 4, **more: Any) -> Row:
        trace = [
            events.note("nccl:_all_gather_base", 10, 50, **events.shaped([[10, 10]], ["float"])),
            events.launch(20, 1),
            events.kernel(GENERIC, 60, 5, 1),
            *more.get("beside", ()),
        ]
        info = {"rank": 0, "world_size": world_size, "pg_config": groups}
        return read(trace, distributedInfo=info).collectives[0]

    return row


@pytest.mark.parametrize("groups", [TWO_OF_ALL, [*TWO_OF_ALL, ALONE, ELSEWHERE]])
def test_the_size_that_all_groups_have_is_deduced(sized: Any, groups: list[Row]) -> None:
    row = sized(groups)
    assert (row["group"], row["group_size"], row["group_provenance"]) == (None, 4, "deduced")
    assert (row["in_bytes"], row["out_bytes"], row["size_bytes"]) == (400, 1600, 1600)


@pytest.mark.parametrize(
    ("groups", "world_size"),
    [
        ([*TWO_OF_ALL, {"pg_name": "5", "pg_size": 2, "ranks": [0, 2]}], 4),
        ([*TWO_OF_ALL, {"pg_name": "5", "pg_size": 2}], 4),  # it may be one of the two
        ([*TWO_OF_ALL, {"pg_name": "5"}], 4),
        (TWO_OF_ALL, 8),  # the default group is not listed: what else is not?
        (TWO_OF_ALL, None),
        ([], 4),
    ],
)
def test_a_size_is_not_deduced_where_groups_differ_or_are_unknown(
    sized: Any, groups: list[Row], world_size: int | None
) -> None:
    row = sized(groups, world_size)
    assert (row["group_size"], row["size_bytes"], row["group_provenance"]) == (None, None, None)


def test_a_group_that_only_an_operation_names_forbids_the_deduction(
    sized: Any, events: Any
) -> None:
    args = told("allreduce", 1, 1, **{"Process Group Ranks": "[0, 9]", "Group size": 2})
    assert sized(TWO_OF_ALL, beside=[events.kernel(GENERIC, 90, 1, **args)])["group_size"] is None


def test_what_an_operation_says_itself_outranks_the_groups(read: Any, events: Any) -> None:
    shapes = events.shaped([[64], [32], []], ["float", "float", ""])
    trace = [
        events.op("c10d::_allgather_base_", 0, 100, **shapes),
        events.launch(50, 1),
        events.kernel(GENERIC, 60, 5, 1),
    ]
    info = {"rank": 0, "world_size": 4, "pg_config": TWO_OF_ALL}
    row = only(read(trace, distributedInfo=info).collectives)
    assert (row["group_size"], row["group_provenance"]) == (2, None)


@pytest.mark.parametrize(("inputs", "peer"), [(["", "", "2", "0"], 5), ([], None)])
def test_a_calls_own_argument_tells_its_peer_rather_than_the_rank_of_a_record(
    read: Any, events: Any, inputs: list[str], peer: int | None
) -> None:
    """Other tools write the caller's: this is rank 0."""
    group = {"Process Group Name": "5", "Process Group Ranks": "[0, 1, 5]", "Group size": 3}
    found = read(
        [
            events.op("c10d::send", 0, 12, **{"Concrete Inputs": inputs}),
            events.op("record_param_comms", 1, 10, **told("send", 8, 8, Rank=0, **group)),
            events.launch(5, 1),
            events.kernel(GENERIC, 20, 5, 1),
        ]
    )
    assert only(found.collectives)["peer"] == peer
