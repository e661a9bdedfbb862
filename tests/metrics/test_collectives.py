"""What each kind of collective cost: counted, timed and rated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commtrace.measures import Measures
from commtrace.metrics.run.collectives import collectives

Make = Callable[..., Measures]
Row = dict[str, Any]

MS = 1_000_000
ALL_REDUCE = {
    "op": "all_reduce",
    "group": "0",
    "group_size": 4,
    "dtype": "float32",
    "size_bytes": 4_000_000,
    "seq": 1,
    "start_ns": 0,
    "duration_ns": MS,
}


@pytest.fixture
def table(make_trace: Make) -> Callable[..., list[Row]]:
    """The measure of a trace of one host whose ranks are those that the rows name."""

    def measure(called: list[Row], *, world_size: int = 4, **tables: list[Row]) -> list[Row]:
        present = sorted({row.get("rank", 0) for row in called})
        members = ",".join(map(str, range(world_size)))
        group = {"group": "0", "size": world_size, "ranks": members}
        ranks = [{"rank": r, "file": f"{r}.json", "host": "a"} for r in present]
        groups = tables.pop("groups", [{"rank": r, **group} for r in present])
        trace = make_trace(collectives=called, ranks=ranks, groups=groups, **tables)
        return collectives(trace).dicts()

    return measure


Table = Callable[..., list[Row]]


def at(rank: int, start_ms: float, end_ms: float, **more: Any) -> Row:
    start_ns = round(start_ms * MS)
    return {**ALL_REDUCE, "rank": rank, "start_ns": start_ns} | {
        "duration_ns": round(end_ms * MS) - start_ns,
        **more,
    }


def test_one_operation_by_eye(table: Table) -> None:
    """Ranks 0 to 3 arrive after 0, 1, 2 and 3 ms; all are done after 4."""
    (row,) = table(
        [at(rank, rank, 4, stream=20) for rank in range(4)],
        kernels=[
            {"kind": "communication", "rank": rank, "start_ns": rank * MS}
            | {"duration_ns": (4 - rank) * MS, "stream": 20}
            for rank in range(4)
        ]
        + [{"kind": "compute", "rank": 0, "start_ns": 0, "duration_ns": 2 * MS, "stream": 9}],
    )
    assert row == {
        "op": "all_reduce",
        "executed": None,
        "group": "0",
        "dimension": None,
        "dimension_provenance": None,
        "group_size": 4,
        "group_size_deduced": None,
        "dtype": "float32",
        "size_bytes": 4_000_000,
        "count": 1,
        "complete": 1,
        "duration_ns_p50": 2_500_000,
        "duration_ns_p95": 3_850_000,
        "duration_ns_total": 10 * MS,
        "transfer_ns_p50": MS,
        "wait_ns_total": 6 * MS,
        "skew_ns_p50": 3 * MS,
        "algbw_gb_s": 4.0,
        "busbw_gb_s": pytest.approx(6.0),
        "exposed_ns": 2 * MS,  # (2 + 3 + 2 + 1) / 4
        "bound": "exact",
        "called_at": None,
    }


def test_with_ranks_missing_the_shortest_duration_bounds_the_transfer(table: Table) -> None:
    (row,) = table([at(0, 0, 4), at(1, 2, 4)])
    assert (row["count"], row["complete"], row["wait_ns_total"]) == (1, 0, 2 * MS)
    assert (row["transfer_ns_p50"], row["algbw_gb_s"], row["bound"]) == (2 * MS, 2.0, "lower")


def test_operations_seen_whole_outrank_the_others(table: Table) -> None:
    whole = [at(rank, 0, 1, seq=1) for rank in range(4)]
    (row,) = table([*whole, at(0, 10, 20, seq=2), at(1, 10, 20, seq=2), at(2, 30, 90, seq=3)])
    assert (row["count"], row["complete"]) == (3, 1)
    assert (row["transfer_ns_p50"], row["bound"]) == (MS, "exact")


@pytest.mark.parametrize(
    ("seqs", "count"),
    [
        (([1, 2, 3], [1, 2, 3]), 3),
        (([1, 2, 3], [2, 3, 4]), 4),  # windows that opened at different times
        (([1, 1, 2], [1, 1, 2]), 3),  # coalesced operations share a number
        (([None] * 3, [None] * 2), 3),
    ],
)
def test_an_operation_counts_once(table: Table, seqs: Any, count: int) -> None:
    called = [
        at(rank, 10 * (seq or place), 10 * (seq or place) + 1, seq=seq)
        for rank in (0, 1)
        for place, seq in enumerate(seqs[rank])
    ]
    (row,) = table(called, world_size=2)
    assert row["count"] == count


def test_groups_of_one_name_and_other_members_are_different(table: Table) -> None:
    groups = [{"rank": r, "group": "0", "ranks": "0,1" if r < 2 else "2,3"} for r in range(4)]
    (row,) = table([at(rank, 0, 1, group_size=2) for rank in range(4)], groups=groups)
    assert (row["count"], row["complete"]) == (2, 2)


def test_coalesced_operations_share_the_time_of_their_kernel(table: Table) -> None:
    called = [at(rank, rank, 4, seq=1) for rank in range(4) for _ in range(3)]
    (row,) = table(called)
    assert row["count"] == 3
    assert row["duration_ns_total"] == 10 * MS
    assert row["wait_ns_total"] == 6 * MS
    assert row["bound"] == "lower"


def test_what_ran_at_the_same_time_is_exposed_once(table: Table) -> None:
    called = [at(0, 0, 4, stream=1), at(0, 1, 3, stream=2, seq=2), at(0, 2, 6, stream=3, seq=3)]
    compute = {"kind": "compute", "start_ns": 5 * MS, "duration_ns": 10 * MS, "stream": 9}
    kernel = {"kind": "communication", "start_ns": 0, "duration_ns": 1}
    (row,) = table(called, kernels=[compute, kernel])
    assert (row["duration_ns_total"], row["exposed_ns"]) == (10 * MS, 5 * MS)


def test_an_uneven_all_to_all_is_one_operation_of_its_largest_size(table: Table) -> None:
    sizes = {"op": "all_to_all", "group_size": 2}
    called = [at(0, 0, 1, size_bytes=10_000, **sizes), at(1, 0, 1, size_bytes=30_000, **sizes)]
    (row,) = table(called, world_size=2)
    assert (row["count"], row["size_bytes"]) == (1, 30_000)


def test_a_send_and_its_recv(table: Table) -> None:
    p2p = {"group_size": 2, "seq": None}
    called = [at(0, 0, 5, op="send", peer=1, **p2p), at(1, 3, 5, op="recv", peer=0, **p2p)]
    for row in table(called, world_size=2):
        assert (row["count"], row["complete"], row["transfer_ns_p50"]) == (1, 1, 2 * MS)
        assert (row["busbw_gb_s"], row["bound"]) == (2.0, "exact")
    send, recv = table(called, world_size=2)
    assert (send["wait_ns_total"], recv["wait_ns_total"]) == (3 * MS, 0)


def test_what_the_clocks_cannot_tell_is_no_exact_bandwidth(table: Table) -> None:
    """Of a transfer of 1 µs on two ranks of one host, whose clocks are read to 1 µs."""
    for op, bound in (("all_reduce", "lower"), ("reduce", None)):
        ranks = [at(rank, 0.01 * rank, 0.011, op=op, root=0, group_size=2) for rank in (0, 1)]
        (row,) = table(ranks, world_size=2)
        assert (row["complete"], row["bound"]) == (1, bound)


@pytest.mark.parametrize(("last_ms", "bound"), [(0.997, "lower"), (0.996_999, "exact")])
def test_a_transfer_of_more_than_three_errors_is_exact(
    table: Table, last_ms: float, bound: str
) -> None:
    """The clock's error is 1 µs; from the last arrival to the end are 3 µs, or 1 ns more."""
    calls = [at(0, 0, 1, group_size=2), at(1, last_ms, 1, group_size=2)]
    (row,) = table(calls, world_size=2)
    assert row["bound"] == bound


@pytest.mark.parametrize(("hosts", "bound"), [("aa", "exact"), ("ab", "lower")])
def test_between_two_clocks_a_transfer_is_less_sure(
    make_trace: Make, hosts: str, bound: str
) -> None:
    """10 µs are ten errors of one clock, but two of what ends say of another."""
    ranks = (0, 1)
    trace = make_trace(
        collectives=[
            at(rank, number, number + 0.01, group_size=2, seq=number)
            for rank in ranks
            for number in range(12)
        ],
        ranks=[{"rank": rank, "file": f"{rank}.json", "host": hosts[rank]} for rank in ranks],
        groups=[{"rank": rank, "group": "0", "size": 2, "ranks": "0,1"} for rank in ranks],
    )
    (row,) = collectives(trace).dicts()
    assert row["bound"] == bound


@pytest.mark.parametrize("op", ["send", "recv", "broadcast", "scatter", "reduce", "gather"])
def test_one_side_alone_tells_no_bandwidth(table: Table, op: str) -> None:
    """A buffered send is done before the transfer, a root before the others."""
    (row,) = table([{**ALL_REDUCE, "op": op, "peer": 1, "root": 0}])
    assert row["duration_ns_p50"] == MS
    assert (row["algbw_gb_s"], row["busbw_gb_s"], row["bound"]) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "algbw", "busbw", "bound"),
    [
        ({"op": "all_gather"}, 4.0, 3.0, "lower"),
        ({"group_size": None}, 4.0, None, "lower"),
        ({"size_bytes": None}, None, None, None),
        ({"op": None}, None, None, None),
        ({"op": "barrier", "size_bytes": None}, None, None, None),
        ({"duration_ns": 0}, None, None, None),
    ],
)
def test_bandwidth_of_one_rank_alone(
    table: Table, change: Any, algbw: Any, busbw: Any, bound: Any
) -> None:
    (row,) = table([{**ALL_REDUCE, **change}])
    assert (row["algbw_gb_s"], row["busbw_gb_s"], row["bound"]) == (algbw, busbw, bound)
    assert (row["transfer_ns_p50"], row["wait_ns_total"], row["skew_ns_p50"]) == (None,) * 3


def test_a_group_of_one_waits_for_nobody(table: Table) -> None:
    (row,) = table([{**ALL_REDUCE, "group_size": 1}], world_size=1)
    assert (row["algbw_gb_s"], row["busbw_gb_s"], row["bound"]) == (4.0, 0.0, "exact")


def test_kinds_are_apart_and_the_costliest_is_first(table: Table) -> None:
    cheap, other_group = {"duration_ns": 10}, {"group": None, "duration_ns": 5}
    called = [{**ALL_REDUCE, **other_group}, ALL_REDUCE, {**ALL_REDUCE, "dtype": None, **cheap}]
    found = table([{**row, "seq": seq} for seq, row in enumerate(called)])
    assert [(row["group"], row["dtype"], row["duration_ns_total"]) for row in found] == [
        ("0", "float32", MS),
        ("0", None, 10),
        (None, "float32", 5),
    ]


def test_exposed_is_null_where_compute_is_unknown(table: Table) -> None:
    kernels = [{"kind": "compute", "start_ns": 0, "duration_ns": 10}]
    (row,) = table([{**ALL_REDUCE, "device": "cpu"}], kernels=kernels)
    assert row["exposed_ns"] is None
