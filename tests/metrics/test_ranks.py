"""Who was last, who waited, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commtrace.measures import Measures
from commtrace.metrics.run.ranks import arrivals, ranks

Make = Callable[..., Measures]
Row = dict[str, Any]

MS = 1_000_000


def called(seq: int, starts_ms: dict[int, float], end_ms: float, group: str = "0") -> list[Row]:
    """One all_reduce: the ranks that arrive, when, and when all are done."""
    told = {"op": "all_reduce", "group": group, "group_size": len(starts_ms), "seq": seq}
    return [
        {**told, "rank": rank, "start_ns": round(start * MS)}
        | {"duration_ns": round((end_ms - start) * MS), "size_bytes": 4, "dtype": "float32"}
        for rank, start in starts_ms.items()
    ]


def trace_of(make_trace: Make, operations: list[list[Row]], groups: dict[str, str]) -> Measures:
    """A trace of one host, with groups given by their members."""
    members = [
        {"rank": int(rank), "group": name, "ranks": ranks, "size": ranks.count(",") + 1}
        for name, ranks in groups.items()
        for rank in ranks.split(",")
    ]
    present = sorted({row["rank"] for row in members})
    return make_trace(
        collectives=[row for operation in operations for row in operation],
        groups=members,
        ranks=[{"rank": rank, "file": f"{rank}.json", "host": "a"} for rank in present],
    )


def told(row: Row) -> tuple[Any, ...]:
    return row["last_arrivals"], row["wait_ns_total"], row["caused_wait_ns"]


def test_who_waits_for_whom_by_eye(make_trace: Make) -> None:
    operations = [
        called(1, {0: 0, 1: 1, 2: 3}, 4),  # 0 waits 3 ms, 1 waits 2 ms, for 2
        called(2, {0: 10, 1: 10, 2: 15}, 16),  # both wait 5 ms for 2
        called(3, {0: 24, 1: 20, 2: 20}, 25),  # both wait 4 ms for 0
    ]
    trace = trace_of(make_trace, operations, {"0": "0,1,2"})
    table = ranks(trace).dicts()
    assert [told(row) for row in table] == [
        (1, 8 * MS, 8 * MS),
        (0, 11 * MS, 0),
        (2, 4 * MS, 15 * MS),
    ]
    assert [(row["file"], row["host"]) for row in table] == [(f"{r}.json", "a") for r in range(3)]
    for row in arrivals(trace).dicts():
        assert (row["operations"], row["expected_last_arrivals"]) == (3, 1.0)


def test_each_group_has_its_own_straggler(make_trace: Make) -> None:
    operations = [
        called(1, {0: 0, 1: 5}, 6, "rows"),
        called(1, {2: 0, 3: 5}, 6, "rows"),
        called(1, {0: 20, 2: 27}, 28, "columns"),
        called(1, {1: 20, 3: 27}, 28, "columns"),
    ]
    groups = {"rows": "0,1", "columns": "0,2"}
    others = {"rows": "2,3", "columns": "1,3"}
    both = [trace_of(make_trace, [], some).rows("groups") for some in (groups, others)]
    members = [row for table in both for row in table.dicts()]
    trace = make_trace(
        collectives=[row for operation in operations for row in operation],
        groups=sorted(members, key=lambda row: row["rank"]),
        ranks=[{"rank": rank, "file": f"{rank}.json", "host": "a"} for rank in range(4)],
    )
    table = {(row["communicator"], row["rank"]): told(row) for row in arrivals(trace).dicts()}
    assert table == {
        ("0,1", 0): (0, 5 * MS, 0),
        ("0,1", 1): (1, 0, 5 * MS),
        ("0,2", 0): (0, 7 * MS, 0),
        ("0,2", 2): (1, 0, 7 * MS),
        ("1,3", 1): (0, 7 * MS, 0),
        ("1,3", 3): (1, 0, 7 * MS),
        ("2,3", 2): (0, 5 * MS, 0),
        ("2,3", 3): (1, 0, 5 * MS),
    }
    assert [told(row) for row in ranks(trace).dicts()] == [
        (0, 12 * MS, 0),
        (1, 7 * MS, 5 * MS),
        (1, 5 * MS, 7 * MS),
        (2, 0, 12 * MS),
    ]


def test_operations_that_share_a_kernel_wait_once(make_trace: Make) -> None:
    operations = [called(1, {0: 0, 1: 3}, 4)] * 5
    trace = trace_of(make_trace, operations, {"0": "0,1"})
    first, second = arrivals(trace).dicts()
    assert (first["operations"], *told(first)) == (5, 0, 3 * MS, 0)
    assert (second["operations"], *told(second)) == (5, 5, 0, 3 * MS)


def test_a_rank_alone_is_compared_to_nobody(make_trace: Make) -> None:
    trace = trace_of(make_trace, [called(1, {0: 0, 1: 3}, 4)[:1]], {"0": "0,1"})
    assert [told(row) for row in ranks(trace).dicts()] == [(None, None, None)] * 2
    assert not len(arrivals(trace))


def test_nothing_called(make_trace: Make) -> None:
    assert not len(ranks(make_trace()))
    assert not len(arrivals(make_trace()))
