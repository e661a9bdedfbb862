"""Who waited for whom, in runs that can be followed by eye: times are in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commtrace.arrays import NULL
from commtrace.measures import Measures
from commtrace.metrics.run.waits import matched, operations, unmatched, waits
from commtrace.synthetic import Tiny
from commtrace.table import rows

Make = Callable[..., Measures]
MS = 1_000_000


def run(
    make: Make, times: list[tuple[float, float]], size: int | None = None, **call: Any
) -> Measures:
    """One operation on some ranks of one host, each from a time until a time."""
    size = size or len(times)
    everyone = ",".join(map(str, range(size)))
    row = {"op": "all_reduce", "group": "0", "group_size": size, "seq": 1, "size_bytes": 8, **call}
    return make(
        collectives=[
            {
                **row,
                "rank": rank,
                "start_ns": round(first * MS),
                "duration_ns": round((last - first) * MS),
            }
            for rank, (first, last) in enumerate(times)
        ],
        groups=[{"rank": r, "group": "0", "size": size, "ranks": everyone} for r in range(size)],
        ranks=[{"rank": rank, "file": f"{rank}", "host": "a"} for rank in range(len(times))],
    )


def waited(trace: Measures) -> list[float | None]:
    return [None if w is None else w / MS for w in (r["wait_ns"] for r in waits(trace).dicts())]


def caused(trace: Measures) -> list[float | None]:
    told = (row["caused_wait_ns"] for row in waits(trace).dicts())
    return [None if ns is None else ns / MS for ns in told]


def one(trace: Measures) -> dict[str, Any]:
    (row,) = operations(trace).dicts()
    return row


def test_all_wait_for_the_last(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 10), (4, 10), (8, 10)])
    assert waited(trace) == [8, 4, 0]
    assert caused(trace) == [0, 0, 12]
    assert waits(trace).flags("last").tolist() == [False, False, True]
    row = one(trace)
    assert row["last_rank"] == 2
    assert (row["skew_ns"], row["transfer_ns"], row["exact"]) == (8 * MS, 2 * MS, True)
    assert (row["first_arrival_ns"], row["last_arrival_ns"]) == (0, 8 * MS)
    assert (row["last_end_ns"], row["present"], row["expected"]) == (10 * MS, 3, 3)
    assert (row["group"], row["communicator"], row["seq"]) == ("0", "0,1,2", 1)
    assert row["matched_by"] == "sequence"


def test_what_the_clock_cannot_tell_is_no_wait(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 1), (0.002, 1)])
    assert waited(trace) == caused(trace) == [0, 0]
    row = one(trace)
    assert (row["skew_ns"], row["last_rank"]) == (0, None)


def test_transfer_below_the_clocks_error_is_the_shortest_duration(make_trace: Make) -> None:
    row = one(run(make_trace, [(0, 5), (5 - 0.002, 5)]))
    assert row["transfer_ns"] == 2_000


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_a_broadcast_waits_for_its_root_only(make_trace: Make, op: str) -> None:
    trace = run(make_trace, [(0, 7), (4, 6), (5, 8)], op=op, root=1)
    assert waited(trace) == [4, 0, 0]
    assert caused(trace) == [0, 4, 0]
    assert one(trace)["transfer_ns"] == 3 * MS  # rank 0 and 2: from 4 to 7 and 5 to 8


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_a_reduce_lets_only_its_root_wait(make_trace: Make, op: str) -> None:
    trace = run(make_trace, [(0, 1), (3, 9), (5, 8)], op=op, root=0)
    assert waited(trace) == [1, 0, 0]  # for the first of the others, at most as it ran
    assert caused(trace) == [0, 0, 0]


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_without_its_root_a_rooted_operation_tells_nothing(make_trace: Make, op: str) -> None:
    trace = run(make_trace, [(0, 7), (4, 6)], size=3, op=op, root=2)
    assert waited(trace) == [None, None]
    assert not one(trace)["exact"]
    assert waited(run(make_trace, [(2, 7), (4, 6)], op=op)) == [None, None]  # who sends?


@pytest.mark.parametrize(("named", "root"), [((0, 0), 0), ((0, None), 0), ((0, 1), None)])
def test_ranks_that_name_several_roots_name_none(
    named: tuple[int | None, ...], root: int | None
) -> None:
    tiny = Tiny(ranks=2)
    for rank, its in enumerate(named):
        tiny.collective(rank, "broadcast", 10 * rank, 20, size=8, root=its)
    assert one(tiny.trace())["root"] == root


def test_a_root_that_no_call_names_is_who_all_others_were_held_for(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 9.5), (8, 9), (1, 10)], op="broadcast")
    assert one(trace)["root"] == 1
    assert waited(trace) == [8, 0, 7]
    assert caused(trace) == [0, 15, 0]


def test_who_alone_is_held_is_the_root_of_what_is_collected(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 9), (8, 8.5), (1, 2)], op="gather")
    assert one(trace)["root"] == 0
    assert waited(trace) == [1, 0, 0]


@pytest.mark.parametrize(
    ("op", "times"),
    [
        ("broadcast", [(0, 9.5), (8, 9), (1, 2)]),  # one went on before the last came
        ("broadcast", [(0, 9.5), (1, 9), (2, 9.5)]),  # all that time may be the transfer's
        ("reduce", [(0, 9), (8, 8.5), (1, 9)]),  # two were held
    ],
)
def test_otherwise_waiting_tells_no_root(
    make_trace: Make, op: str, times: list[tuple[float, float]]
) -> None:
    trace = run(make_trace, times, op=op)
    assert one(trace)["root"] is None
    assert waited(trace) == [None] * 3


def test_the_same_root_of_several_is_that_of_the_others_of_its_group(make_trace: Make) -> None:
    held, open_ = [(0.0, 9.0), (8.0, 9.0)], [(0.0, 9.0), (1.0, 9.0)]
    assert _roots(make_trace, [held, held, held, open_]) == [1, 1, 1, 1]
    assert _roots(make_trace, [held, held, open_]) == [1, 1, None]
    assert _roots(make_trace, [held, held, held, held[::-1], open_]) == [1, 1, 1, 0, None]


def _roots(make_trace: Make, operations_ms: list[list[tuple[float, float]]]) -> list[int | None]:
    """Of broadcasts behind each other, each rank's arrival and end within its 20 ms."""
    called = {"op": "broadcast", "group": "0", "group_size": 2, "size_bytes": 8}
    trace = make_trace(
        collectives=[
            {
                **called,
                "seq": number + 1,
                "rank": rank,
                "start_ns": round((20 * number + start) * MS),
                "duration_ns": round((end - start) * MS),
            }
            for number, its in enumerate(operations_ms)
            for rank, (start, end) in enumerate(its)
        ],
        groups=[{"rank": rank, "group": "0", "size": 2, "ranks": "0,1"} for rank in range(2)],
        ranks=[{"rank": rank, "file": f"{rank}", "host": "a"} for rank in range(2)],
    )
    return [row["root"] for row in operations(trace).dicts()]


def test_a_reduce_with_ranks_missing_tells_nothing(make_trace: Make) -> None:
    # The one that is missing may have come first.
    assert waited(run(make_trace, [(0, 7), (4, 6)], size=3, op="reduce", root=0)) == [None, None]


def test_with_ranks_missing_waits_and_transfer_are_bounds(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 10), (4, 10)], size=3)
    assert waited(trace) == [4, 0]
    row = one(trace)
    assert (row["transfer_ns"], row["exact"]) == (6 * MS, False)
    assert [note.code for note in unmatched(trace)] == ["partial-operations"]


def test_one_rank_alone_cannot_tell_its_waiting(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 10)], size=2)
    assert waited(trace) == caused(trace) == [None]
    row = one(trace)
    assert (row["transfer_ns"], row["skew_ns"], row["exact"]) == (10 * MS, None, False)
    assert row["matched_by"] is None


def message(
    make: Make, send: tuple[float, float], recv: tuple[float, float], **of: Any
) -> Measures:
    trace = run(make, [send, recv], **of)
    first, second = rows(trace.collectives)
    ends = [{**first, "op": "send", "peer": 1}, {**second, "op": "recv", "peer": 0}]
    return make(collectives=ends, groups=rows(trace.groups), ranks=rows(trace.ranks))


def test_late_sender_and_late_receiver(make_trace: Make) -> None:
    late_sender = message(make_trace, (4, 6), (0, 6))
    assert (waited(late_sender), caused(late_sender)) == ([0, 4], [4, 0])
    late_receiver = message(make_trace, (0, 6), (4, 6))
    assert (waited(late_receiver), caused(late_receiver)) == ([4, 0], [0, 4])
    row = one(late_receiver)
    assert (row["op"], row["transfer_ns"], row["last_rank"]) == ("send", 2 * MS, 1)


def test_a_send_that_was_through_waited_for_nobody(make_trace: Make) -> None:
    assert waited(message(make_trace, (0, 1), (4, 6))) == [0, 0]


@pytest.mark.parametrize(
    ("recorded", "step_ms", "moved_ms"), [("cpu", 10, 2), ("cpu", 60, 49), ("cuda:0", 10, 49)]
)
def test_a_message_that_its_step_does_not_wait_for_is_over_when_it_is_received(
    make_trace: Make, recorded: str, step_ms: int, moved_ms: int
) -> None:
    """gloo notes the end of a send when its program waits for it, or lets go of it."""
    trace = message(make_trace, (0, 50), (1, 3), device=recorded)
    tables = {name: rows(getattr(trace, name)) for name in ("collectives", "groups", "ranks")}
    start = min(row["start_ns"] for row in tables["collectives"])
    step = {
        "step": 1,
        "label": None,
        "start_ns": start - 1,
        "thread": 1,
        "duration_ns": step_ms * MS,
    }
    noted = make_trace(**tables, steps=[{"rank": rank, **step} for rank in range(2)])
    assert (waited(noted), one(noted)["transfer_ns"]) == ([1, 0], moved_ms * MS)


def test_gloos_messages_arrive_when_they_are_called(make_trace: Make) -> None:
    trace = message(make_trace, (4, 6), (0, 6), device="cpu", launch_ns=0)
    assert waited(trace) == [0, 0]


def test_ranks_of_another_host_share_its_clock(make_trace: Make) -> None:
    # Two hosts, a group on each, nothing in common: offsets are unknown, waits are not.
    both = [run(make_trace, [(0, 10), (4, 10)]), run(make_trace, [(1, 11), (9, 11)])]
    tables: dict[str, list[dict[str, Any]]] = {}
    for place, trace in enumerate(both):
        for name in ("collectives", "groups", "ranks"):
            for row in rows(getattr(trace, name)):
                moved = {**row, "rank": row["rank"] + 2 * place}
                if name == "groups":
                    moved["ranks"] = ("0,1", "2,3")[place]
                if name == "ranks":
                    moved["host"] = "ab"[place]
                tables.setdefault(name, []).append(moved)
    trace = make_trace(**tables)
    assert (matched(trace).clock.ints("offset_ns") == NULL).tolist() == [False, False, True, True]
    assert waited(trace) == [4, 0, 8, 0]
    assert (waits(trace).ints("arrival_ns") == NULL).tolist() == [False, False, True, True]
    assert operations(trace).flags("exact").all()


@pytest.mark.parametrize(("late_ns", "told"), [(3_000, 0), (3_001, 3_001)])
def test_what_is_told_is_more_than_three_errors(make_trace: Make, late_ns: int, told: int) -> None:
    trace = run(make_trace, [(0, 1), (late_ns / MS, 1)])
    assert waits(trace).ints("wait_ns").tolist() == [told, 0]
    assert waits(trace).flags("last").tolist() == [False, told > 0]
    assert one(trace)["skew_ns"] == told


@pytest.mark.parametrize(("end", "transfer_ns"), [(0.005, 1_000), (0.005_001, 3_001)])
def test_a_transfer_is_more_than_three_errors(
    make_trace: Make, end: float, transfer_ns: int
) -> None:
    """From 2 µs to 5: no more than three errors, so that rank 0's 1 µs is all that is sure."""
    assert one(run(make_trace, [(0, 0.001), (0.002, end)]))["transfer_ns"] == transfer_ns


def test_with_ranks_missing_the_shortest_duration_bounds_the_transfer(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 5), (4, 10)], size=3)  # from 4 to 10, and from 0 to 5
    assert one(trace)["transfer_ns"] == 5 * MS


def test_a_transfer_ends_with_the_last(make_trace: Make) -> None:
    assert one(run(make_trace, [(0, 7), (4, 10)]))["transfer_ns"] == 6 * MS


def test_a_send_that_ended_as_its_recv_began_waited_for_nobody(make_trace: Make) -> None:
    assert waited(message(make_trace, (0, 4), (4, 6))) == [0, 0]


@pytest.mark.parametrize("more_ns", [0, 1])
def test_on_two_clocks_it_is_three_times_the_larger_error(make_trace: Make, more_ns: int) -> None:
    """Rank 0's clock has no error; ends, not arrivals, say what rank 1's has."""

    def two_hosts(late_ns: int) -> Measures:
        calls = [
            {"rank": rank, "op": "all_reduce", "group": "0", "group_size": 2, "seq": number}
            | {"start_ns": 10 * number * MS, "duration_ns": MS}
            for rank in (0, 1)
            for number in range(12)
        ]
        calls[12] |= {"start_ns": late_ns, "duration_ns": MS - late_ns}
        groups = [{"rank": rank, "group": "0", "size": 2, "ranks": "0,1"} for rank in (0, 1)]
        ranks = [{"rank": rank, "file": f"{rank}", "host": "ab"[rank]} for rank in (0, 1)]
        return make_trace(collectives=calls, groups=groups, ranks=ranks)

    error_ns = int(matched(two_hosts(0)).clock.ints("error_ns").max())
    assert error_ns > 1_000
    late_ns = 3 * error_ns + more_ns
    assert waits(two_hosts(late_ns)).ints("wait_ns").sum() == late_ns * more_ns


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_without_a_common_clock_nobody_waits(make_trace: Make, op: str) -> None:
    trace = run(make_trace, [(0, 10), (4, 10)], op=op, root=0)
    ranks = [{**row, "host": "ab"[row["rank"]]} for row in rows(trace.ranks)]
    apart = make_trace(collectives=rows(trace.collectives), groups=rows(trace.groups), ranks=ranks)
    assert waited(apart) == [None, None]
    assert one(apart)["last_rank"] is one(apart)["skew_ns"] is None
    assert not one(apart)["exact"]


def test_sizes_and_types_come_from_the_ranks_that_know(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 1), (0, 1)], op="scatter", root=1)
    known = rows(trace.collectives)
    known[0]["size_bytes"], known[1]["dtype"] = None, "float32"
    trace = make_trace(collectives=known, groups=rows(trace.groups), ranks=rows(trace.ranks))
    assert (one(trace)["size_bytes"], one(trace)["dtype"]) == (8, "float32")


def test_matching_is_done_once_and_rows_keep_their_order(make_trace: Make) -> None:
    trace = run(make_trace, [(0, 10), (4, 10)])
    assert matched(trace) is matched(trace)
    backwards = make_trace(
        collectives=rows(trace.collectives)[::-1],
        groups=rows(trace.groups),
        ranks=rows(trace.ranks),
    )
    assert waits(backwards).ints("rank").tolist() == [1, 0]
    assert waited(backwards) == [0, 4]


def test_nothing_recorded(make_trace: Make) -> None:
    trace = make_trace()
    assert not len(operations(trace))
    assert not len(waits(trace))
    assert unmatched(trace) == ()
