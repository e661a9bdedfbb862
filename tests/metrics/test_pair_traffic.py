"""Bytes between ranks, where the operation itself says from whom to whom."""

from __future__ import annotations

from commtrace.measures import Measures
from commtrace.metrics.run.pair_traffic import pair_traffic
from commtrace.synthetic import Tiny


def sent(run: Measures) -> dict[tuple[int, int], tuple[int, int]]:
    table = pair_traffic(run).dicts()
    return {(row["source"], row["destination"]): (row["count"], row["bytes"]) for row in table}


def test_a_message_counts_once_and_its_bandwidth_is_of_the_transfer() -> None:
    run = Tiny(2)
    run.collective(0, "send", 0, 100, size=1_000_000, peer=1)
    run.collective(1, "recv", 50, 50, size=1_000_000, peer=0)
    assert sent(run.trace()) == {(0, 1): (1, 1_000_000)}
    assert pair_traffic(run.trace()).floats("gb_s").tolist() == [1_000_000 / 50_000]


def test_a_recv_counts_where_its_sender_has_no_trace() -> None:
    run = Tiny(1)
    run.groups["0"] = (0, 1)
    run.collective(0, "recv", 0, 100, size=8, peer=1)
    run.collective(0, "send", 200, 100, size=4, peer=1)
    assert sent(run.trace()) == {(1, 0): (1, 8), (0, 1): (1, 4)}
    assert [row["gb_s"] for row in pair_traffic(run.trace()).dicts()] == [None, None]


def test_rooted_operations_go_from_or_to_the_root() -> None:
    run = Tiny(3)
    for rank in range(3):
        run.collective(rank, "broadcast", 0, 10, size=30, root=0)
        run.collective(rank, "gather", 20, 10, size=30, root=1)
        run.collective(rank, "all_reduce", 40, 10, size=30)
    assert sent(run.trace()) == {
        (0, 1): (2, 30 + 10),
        (0, 2): (1, 30),
        (2, 1): (1, 10),
    }


def test_an_all_to_all_is_taken_as_even_and_unknown_sizes_are_left_out() -> None:
    run = Tiny(2)
    for rank in range(2):
        run.collective(rank, "all_to_all", 0, 10, size=30)
        run.collective(rank, "all_to_all", 20, 10)
    assert sent(run.trace()) == {(0, 1): (1, 15), (1, 0): (1, 15)}
