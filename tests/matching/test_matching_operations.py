"""Runs so small that the right match can be seen: one nanosecond is one line of thought."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commtrace.matching import match
from commtrace.measures import Measures

Make = Callable[..., Measures]
MS = 1_000_000
TIMES = (0, 7, 9, 20, 21, 35, 48, 50, 66, 70, 81, 99)  # ms, at no two equal intervals
ALL_REDUCE = {"op": "all_reduce", "group": "0", "group_size": 2, "dtype": "float32"}


def call(rank: int, start_ms: float, **other: Any) -> dict[str, Any]:
    """An operation of one millisecond."""
    start_ns = round(start_ms * MS)
    row = {**ALL_REDUCE, "rank": rank, "size_bytes": 1024, "duration_ns": MS, "start_ns": start_ns}
    return {**row, **other}


def group(rank: int, name: str = "0", ranks: str | None = "0,1", size: int = 2) -> dict[str, Any]:
    return {"rank": rank, "group": name, "size": size, "ranks": ranks}


def run(make: Make, calls: list[dict[str, Any]], groups: Any = None, hosts: Any = "ab") -> Measures:
    ranks = sorted({each["rank"] for each in calls})
    groups = [group(rank) for rank in ranks] if groups is None else groups
    hosts = [None] * len(ranks) if hosts is None else hosts
    return make(
        collectives=calls,
        groups=groups,
        ranks=[{"rank": r, "file": f"{r}", "host": hosts[i]} for i, r in enumerate(ranks)],
    )


def found(trace: Measures) -> list[tuple[int, str | None]]:
    return [(row["operation"], row["matched_by"]) for row in match(trace).matches.dicts()]


def codes(trace: Measures) -> list[str]:
    return [note.code for note in match(trace).notes]


def partners(trace: Measures) -> list[list[int]]:
    """The rows of each operation."""
    together: dict[int, list[int]] = {}
    for place, (number, _) in enumerate(found(trace)):
        together.setdefault(number, []).append(place)
    return list(together.values())


def test_the_same_number_in_one_group_is_one_operation(make_trace: Make) -> None:
    trace = run(make_trace, [call(0, 0, seq=1), call(0, 5, seq=2), call(1, 5, seq=2)])
    assert found(trace) == [(0, None), (1, "sequence"), (1, "sequence")]
    row = match(trace).matches.dicts()[1]
    assert (row["communicator"], row["present"], row["expected"]) == ("0,1", 2, 2)
    assert codes(trace) == ["unmatched-operations"]


def test_what_no_host_called_is_matched_by_its_kernels_name(make_trace: Make) -> None:
    """As in a CUDA graph, whose kernels have no metadata."""
    unseen = {"op": None, "executed": "all_reduce", "size_bytes": None}
    calls = [call(rank, time + rank / 9, **unseen) for rank in (0, 1) for time in TIMES]
    trace = run(make_trace, calls)
    assert partners(trace) == [[at, at + len(TIMES)] for at in range(len(TIMES))]
    assert {how for _, how in found(trace)} == {"alignment"}
    assert not codes(trace)


def test_what_nobody_knows_is_not_said_to_be_missing(make_trace: Make) -> None:
    calls = [call(rank, 0, op=None, name="notify_dispatch") for rank in (0, 1)]
    notes = match(run(make_trace, [*calls, call(0, 5)])).notes
    missing, *unknown = (note.message for note in notes)
    assert "1 of rank 0's 2 operations" in missing
    assert "never called them" in missing
    assert len(unknown) == 2
    assert all("the trace does not show which operation" in message for message in unknown)


def test_numbers_of_the_flight_recorder_are_said_to_be_such(make_trace: Make) -> None:
    other = {"seq": 1, "group_provenance": "flight-recorder"}
    trace = run(make_trace, [call(0, 0, **other), call(1, 0, **other)])
    assert {how for _, how in found(trace)} == {"flight-recorder"}


def test_a_comms_id_goes_before_the_number(make_trace: Make) -> None:
    calls = [
        call(rank, 10 * i, seq=i + rank, comms_id=f"id{i}") for rank in (0, 1) for i in range(4)
    ]
    trace = run(make_trace, calls)
    assert found(trace) == [(i, "comms-id") for i in range(4)] * 2


def test_one_group_under_two_names(make_trace: Make) -> None:
    calls = [
        call(rank, 10 * i, group="ab"[rank], seq=i, comms_id=f"{rank} {i}")
        for rank in (0, 1)
        for i in range(4)
    ]
    trace = run(make_trace, calls, [group(0, "a"), group(1, "b")])
    assert found(trace) == [(i, "sequence") for i in range(4)] * 2


def test_one_name_for_two_groups(make_trace: Make) -> None:
    members = ("0,1", "0,1", "2,3", "2,3")
    calls = [call(rank, 0, seq=1) for rank in range(4)]
    trace = run(make_trace, calls, [group(r, ranks=members[r]) for r in range(4)], "aaaa")
    assert partners(trace) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("seq", [None, 1])
def test_a_name_of_more_ranks_than_it_has_members_says_nothing(
    make_trace: Make, seq: int | None
) -> None:
    calls = [call(rank, 0, seq=seq) for rank in range(4)]
    trace = run(make_trace, calls, [group(r, ranks=None) for r in range(4)], "aaaa")
    assert partners(trace) == [[0], [1], [2], [3]]
    assert codes(trace) == ["unmatched-operations"] * 4


def test_two_groups_of_the_same_ranks(make_trace: Make) -> None:
    calls = [call(rank, 0, group=name, seq=1) for rank in (0, 1) for name in "xy"]
    trace = run(make_trace, calls, [group(rank, name) for rank in (0, 1) for name in "yx"])
    assert partners(trace) == [[0, 2], [1, 3]]


def test_gloo_and_nccl_count_apart_in_one_group(make_trace: Make) -> None:
    calls = [call(rank, 0, seq=1, device=d) for rank in (0, 1) for d in ("cpu", "cuda:0")]
    assert partners(run(make_trace, calls)) == [[0, 2], [1, 3]]


def test_one_number_for_different_operations_is_never_one(make_trace: Make) -> None:
    # The last of rank 1 is out of step: another operation, and then another size.
    calls = [call(rank, 10 * i, seq=i) for rank in (0, 1) for i in range(12)]
    calls[-1] |= {"op": "all_gather"}
    calls[-2] |= {"size_bytes": 4}
    trace = run(make_trace, calls)
    together = partners(trace)
    assert [both for both in together if len(both) == 2] == [[i, i + 12] for i in range(10)]
    assert codes(trace) == ["unmatched-operations"] * 2 + ["sequence-disagrees"]


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("alike", [True, False])
def test_a_rank_that_counts_differently_is_aligned(
    make_trace: Make, hosts: str, alike: bool
) -> None:
    # Rank 1's numbers are one ahead: each is another operation's, though they look the same.
    sizes = [4 if alike else 4 << i for i in range(12)]
    calls = [
        call(rank, time, seq=i + rank, size_bytes=sizes[i])
        for rank in (0, 1)
        for i, time in enumerate(TIMES)
    ]
    trace = run(make_trace, calls, hosts=hosts)
    assert partners(trace) == [[i, i + 12] for i in range(12)]
    assert {how for _, how in found(trace)} == {"alignment"}
    assert "sequence-disagrees" in codes(trace)


@pytest.mark.parametrize("numbered", [True, False])
def test_coalesced_operations_share_a_kernel(make_trace: Make, numbered: bool) -> None:
    # Two of one size and one of another in each launch.
    calls = [
        call(rank, time, seq=i if numbered else None, size_bytes=size)
        for rank in (0, 1)
        for i, time in enumerate(TIMES)
        for size in (8, 4, 8)
    ]
    trace = run(make_trace, calls, hosts="aa")
    assert partners(trace) == [[i, i + 36] for i in range(36)]
    assert codes(trace) == []


@pytest.mark.parametrize("hosts", ["aa", "ab", None])
def test_a_late_window_shifts_nothing(make_trace: Make, hosts: Any) -> None:
    late = 3
    calls = [call(0, t) for t in TIMES] + [call(1, t + 0.2 * (hosts != "aa")) for t in TIMES[late:]]
    trace = run(make_trace, calls, hosts=hosts)
    assert [both for both in partners(trace) if len(both) == 2] == [
        [i, i + len(TIMES) - late] for i in range(late, len(TIMES))
    ]
    assert (~match(trace).matches.coded("matched_by").known).sum() == late


def test_clocks_an_hour_apart_and_a_lost_event(make_trace: Make) -> None:
    hour = 3_600_000
    kept = [t for t in TIMES if t != 35]
    calls = [call(0, t) for t in TIMES] + [call(1, t + hour) for t in kept]
    trace = run(make_trace, calls)
    pairs = [both for both in partners(trace) if len(both) == 2]
    assert [TIMES[a] for a, _ in pairs] == kept
    offset = match(trace).clock.dicts()[1]["offset_ns"]
    assert offset == hour * MS


def test_one_operation_on_each_clock_is_no_evidence(make_trace: Make) -> None:
    trace = run(make_trace, [call(0, 0), call(1, 5)])
    assert partners(trace) == [[0], [1]]
    assert codes(trace) == ["unmatched-operations"] * 2


def test_uneven_all_to_all_and_sizes_that_some_ranks_do_not_know(make_trace: Make) -> None:
    uneven = [
        call(rank, time, op="all_to_all", size_bytes=100 * rank + i)
        for rank in (0, 1)
        for i, time in enumerate(TIMES)
    ]
    assert partners(run(make_trace, uneven, hosts="aa")) == [[i, i + 12] for i in range(12)]
    scatter = [
        call(rank, time, op="scatter", root=0, seq=i, size_bytes=None if rank else 8)
        for rank in (0, 1)
        for i, time in enumerate(TIMES)
    ]
    assert partners(run(make_trace, scatter)) == [[i, i + 12] for i in range(12)]


def test_an_unknown_operation_is_matched_with_none(make_trace: Make) -> None:
    trace = run(make_trace, [call(rank, t, op=None) for rank in (0, 1) for t in TIMES], hosts="aa")
    assert all(len(alone) == 1 for alone in partners(trace))


def message(source: int, target: int, start_ms: float, **other: Any) -> list[dict[str, Any]]:
    """A send and its recv, which ends with it."""
    return [
        call(source, start_ms, op="send", peer=target, **other),
        call(target, start_ms, op="recv", peer=source, **other),
    ]


def test_a_send_and_its_recv_pair_by_order(make_trace: Make) -> None:
    calls = [row for t in TIMES for row in message(0, 1, t)]
    trace = run(make_trace, calls, hosts="aa")
    assert found(trace) == [(i // 2, "order") for i in range(24)]
    assert match(trace).matches.dicts()[0]["expected"] == 2


def test_counters_of_messages_count_for_each_rank_apart(make_trace: Make) -> None:
    # Rank 1 answers in between, so that its n-th recv is its 2n-th message: n and 2n
    # would be of one number, Comms Id included, which is made from it.
    calls = []
    for i, time in enumerate(TIMES):
        send, recv = message(0, 1, time)
        calls += [{**send, "seq": i, "comms_id": f"p2p {i}"}]
        calls += [{**recv, "seq": 2 * i, "comms_id": f"p2p {2 * i}"}]
    trace = run(make_trace, calls, hosts="aa")
    assert found(trace) == [(i // 2, "order") for i in range(24)]


def test_counters_of_messages_that_agree_are_believed(make_trace: Make) -> None:
    calls = [row for i, t in enumerate(TIMES) for row in message(0, 1, t, comms_id=f"p2p {i}")]
    trace = run(make_trace, calls[:1] + calls[2:], hosts="aa")  # the first recv is lost
    assert found(trace)[1:3] == [(1, "comms-id")] * 2
    assert (~match(trace).matches.coded("matched_by").known).sum() == 1


@pytest.mark.parametrize("lost", [[0, 2, 4], [5], [4, 9]])
def test_messages_that_one_end_lost_are_told_by_time(make_trace: Make, lost: list[int]) -> None:
    calls = [row for t in TIMES for row in message(0, 1, t)]
    kept = [row for place, row in enumerate(calls) if place not in lost]
    trace = run(make_trace, kept, hosts="aa")
    for both in partners(trace):
        assert len({kept[place]["start_ns"] for place in both}) == 1
    alone = {kept[both[0]]["start_ns"] for both in partners(trace) if len(both) == 1}
    assert alone == {calls[place]["start_ns"] for place in lost}


def test_a_message_that_is_on_its_way_before_anybody_waits(make_trace: Make) -> None:
    # Small sends return at once, each recv comes only when the next send is through.
    calls = [call(0, t, op="send", peer=1, duration_ns=1000) for t in TIMES]
    calls += [call(1, t + 15, op="recv", peer=0, duration_ns=1000) for t in TIMES]
    assert partners(run(make_trace, calls, hosts="aa")) == [[i, i + 12] for i in range(12)]


def test_a_message_of_an_unknown_peer_is_of_the_only_one_that_names_it(make_trace: Make) -> None:
    calls = [call(1, 0, op="recv", peer=None), call(0, 0, op="send", peer=1)]
    assert partners(run(make_trace, calls, hosts="aa")) == [[0, 1]]
    calls.append(call(2, 0, op="send", peer=1))
    three = [group(rank, ranks="0,1,2", size=3) for rank in range(3)]
    assert partners(run(make_trace, calls, three, hosts="aaa")) == [[0], [1], [2]]


def test_no_operations_and_one_rank(make_trace: Make) -> None:
    assert not len(match(make_trace()).matches)
    trace = run(make_trace, [call(0, 0, seq=1)], hosts="a")
    assert found(trace) == [(0, None)]
    assert codes(trace) == []


NO_GROUP = {"group": None, "group_size": None}
PAIRS = [(rank, "1", "0,1" if rank < 2 else "2,3") for rank in range(4)]


@pytest.mark.parametrize(("groups", "matched"), [([], True), (PAIRS, False)])
def test_who_is_in_an_unnamed_group_is_only_known_where_there_is_one(
    make_trace: Make, groups: list[tuple[int, str, str]], matched: bool
) -> None:
    """Kernels of CUDA graphs name none; with tensor parallel pairs they may be theirs."""
    calls = [call(rank, at, **NO_GROUP) for rank in range(4) for at in TIMES]
    listed = [group(rank, "0", "0,1,2,3", 4) for rank in range(4)]
    listed += [group(rank, name, ranks) for rank, name, ranks in groups]
    its = run(make_trace, calls, groups=listed, hosts="aaaa")
    assert {len(rows) for rows in partners(its)} == ({4} if matched else {1})
