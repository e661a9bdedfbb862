"""What each kind of collective cost: counted, timed and rated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commtrace.metrics.collectives import collectives
from commtrace.schema import rows
from commtrace.trace import Trace

Make = Callable[..., Trace]

ALL_REDUCE = {
    "op": "all_reduce",
    "group": "0",
    "group_size": 4,
    "dtype": "float32",
    "size_bytes": 4_000,
    "start_ns": 0,
    "duration_ns": 1_000,
}


def one(trace: Trace) -> dict[str, Any]:
    (row,) = rows(collectives(trace))
    return row


def test_one_operation_by_eye(make_trace: Make) -> None:
    durations = (1_000, 2_000, 3_000, 4_000)
    row = one(
        make_trace(
            collectives=[
                {**ALL_REDUCE, "rank": rank, "seq": 1, "duration_ns": duration, "stream": 20}
                for rank, duration in enumerate(durations)
            ],
            kernels=[
                {"kind": "communication", "rank": rank, "start_ns": 0, "duration_ns": duration}
                for rank, duration in enumerate(durations)
            ]
            + [{"kind": "compute", "rank": 3, "start_ns": 0, "duration_ns": 2_000, "stream": 9}],
        )
    )
    assert row == {
        "op": "all_reduce",
        "group": "0",
        "group_size": 4,
        "dtype": "float32",
        "size_bytes": 4_000,
        "count": 1,
        "complete": None,
        "duration_ns_p50": 2_500,
        "duration_ns_p95": 3_850,
        "duration_ns_total": 10_000,
        "transfer_ns_p50": None,
        "wait_ns_total": None,
        "skew_ns_p50": None,
        "algbw_gb_s": 1.6,
        "busbw_gb_s": pytest.approx(2.4),
        "exposed_ns": 2_000,  # (1000 + 2000 + 3000 + 2000) / 4
        "bound": "lower",
    }


@pytest.mark.parametrize(
    ("seqs", "count"),
    [
        (([1, 2, 3], [1, 2, 3]), 3),
        (([1, 2, 3], [2, 3, 4]), 4),  # windows that opened at different times
        (([1, 1, 2], [1, 1, 2]), 3),  # coalesced operations share a number
        (([None] * 3, [None] * 2), 3),
        (([1, 2, 3], [None] * 2), 3),
    ],
)
def test_an_operation_counts_once(make_trace: Make, seqs: Any, count: int) -> None:
    called = [{**ALL_REDUCE, "rank": r, "seq": seq} for r in (0, 1) for seq in seqs[r]]
    assert one(make_trace(collectives=called))["count"] == count


def test_groups_of_one_name_and_other_members_are_different(make_trace: Make) -> None:
    called = [{**ALL_REDUCE, "rank": rank, "seq": 1} for rank in range(4)]
    groups = [{"rank": r, "group": "0", "ranks": "0,1" if r < 2 else "2,3"} for r in range(4)]
    assert one(make_trace(collectives=called, groups=groups))["count"] == 2


def test_every_send_is_an_operation(make_trace: Make) -> None:
    called = [{**ALL_REDUCE, "op": "send", "rank": rank, "seq": 1} for rank in range(4)]
    assert one(make_trace(collectives=called))["count"] == 4


@pytest.mark.parametrize(
    ("change", "algbw", "busbw", "bound"),
    [
        ({"op": "all_gather"}, 4.0, 3.0, "lower"),
        ({"op": "broadcast"}, 4.0, 4.0, "lower"),
        ({"group_size": None}, 4.0, None, "lower"),
        ({"size_bytes": None}, None, None, None),
        ({"op": None}, None, None, None),
        ({"op": "barrier", "size_bytes": None}, None, None, None),
        ({"duration_ns": 0}, None, None, None),
        ({"group_size": 1}, 4.0, 0.0, "lower"),
    ],
)
def test_bandwidth_where_it_is_defined(
    make_trace: Make, change: Any, algbw: Any, busbw: Any, bound: Any
) -> None:
    row = one(make_trace(collectives=[{**ALL_REDUCE, **change}]))
    assert (row["algbw_gb_s"], row["busbw_gb_s"], row["bound"]) == (algbw, busbw, bound)


def test_kinds_are_apart_and_the_costliest_is_first(make_trace: Make) -> None:
    cheap, other_group = {"duration_ns": 10}, {"group": None, "duration_ns": 5}
    called = [{**ALL_REDUCE, **other_group}, ALL_REDUCE, {**ALL_REDUCE, "dtype": None, **cheap}]
    table = rows(collectives(make_trace(collectives=called)))
    assert [(row["group"], row["dtype"], row["duration_ns_total"]) for row in table] == [
        ("0", "float32", 1_000),
        ("0", None, 10),
        (None, "float32", 5),
    ]


def test_exposed_is_null_where_compute_is_untold(make_trace: Make) -> None:
    kernels = [{"kind": "compute", "start_ns": 0, "duration_ns": 10}]
    trace = make_trace(collectives=[{**ALL_REDUCE, "device": "cpu"}], kernels=kernels)
    assert one(trace)["exposed_ns"] is None
