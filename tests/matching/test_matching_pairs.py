"""Sends and recvs between clocks that differ: every sign and margin decides some pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commtrace.arrays import Int64
from commtrace.matching import pairs
from commtrace.matching.clock_line import Line
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.rank_clocks import RankClock
from commtrace.matching.sequence import MARGIN_NS

MS = 1_000_000


def messages(
    sends: list[tuple[int, int]], recvs: list[tuple[int, int]], **more: Any
) -> Collectives:
    """Sends of rank 0 and recvs of rank 1, each from a time until a time, in ns."""
    start, end = np.asarray([*sends, *recvs], dtype=np.int64).T
    n = start.size
    is_send = np.arange(n) < len(sends)
    zeros = np.zeros(n, dtype=np.int64)
    columns: dict[str, Any] = {
        "rank": np.where(is_send, 0, 1),
        "step": zeros,
        "start": start,
        "called": start,
        "end": end,
        "communicator": zeros,
        "communicators": ("0,1",),
        "is_one": True,
        "signature": zeros,
        "known": np.ones(n, dtype=np.bool_),
        "synchronises": np.zeros(n, dtype=np.bool_),
        "awaited": np.ones(n, dtype=np.bool_),
        "awaits": np.ones(n, dtype=np.bool_),
        "p2p": np.ones(n, dtype=np.bool_),
        "sends": is_send,
        "peer": np.where(is_send, 1, 0),
        "on_cpu": np.zeros(n, dtype=np.bool_),
        "comms_id": zeros - 1,
        "seq_key": zeros - 1,
        "recorder": np.zeros(n, dtype=np.bool_),
        "expected": zeros + 2,
        "clock_of": {0: 0, 1: 1},
        "likely_clock_of": {},
        "probes": {},
    }
    return Collectives(**{**columns, **more})


def pair_of(
    send: tuple[int, int], recv: tuple[int, int]
) -> tuple[Collectives, tuple[Int64, Int64]]:
    return messages([send], [recv]), (np.array([0]), np.array([1]))


# The receiver's clock is 100 ms ahead: of a recv that it shows until 110 ms, the end is 10 ms.
AHEAD = Line(100.0 * MS)
RECV = (102 * MS, 110 * MS)


@pytest.mark.parametrize(
    ("called", "possible"),
    [(10 * MS + MARGIN_NS, True), (10 * MS + MARGIN_NS + 1, False)],
)
def test_nothing_is_received_before_it_is_sent(called: int, possible: bool) -> None:
    rows, pair = pair_of((called, called + MS), RECV)
    assert pairs._possible(rows, pair, AHEAD, both=False) == possible
    assert pairs._possible(rows, pair, AHEAD, both=True) == possible


@pytest.mark.parametrize(
    ("end", "possible"),
    [(2 * MS - MARGIN_NS, True), (2 * MS - MARGIN_NS - 1, False)],
)
def test_a_send_that_ended_before_its_recv_began(end: int, possible: bool) -> None:
    """The recv began at 2 ms on the sender's clock."""
    rows, pair = pair_of((0, end), RECV)
    assert pairs._possible(rows, pair, AHEAD, both=True) == possible
    assert pairs._possible(rows, pair, AHEAD, both=False)


def test_both_bounds_count() -> None:
    """Too late a send is impossible, though the recv began in time."""
    rows, pair = pair_of((11 * MS, 12 * MS), RECV)
    assert not pairs._possible(rows, pair, AHEAD, both=True)


@pytest.mark.parametrize(("ends", "agree"), [((10, 20, 60, 90), False), ((10, 20, 30, 90), True)])
def test_most_pairs_have_to_end_together(ends: tuple[int, ...], agree: bool) -> None:
    """The recvs end at 10, 20, 30 and 40 ms; half of the pairs is not most."""
    sends = [(0, end * MS) for end in ends]
    recvs = [(100 * MS, (100 + end) * MS) for end in (10, 20, 30, 40)]
    both = (np.arange(4), np.arange(4, 8))
    assert pairs._agree(messages(sends, recvs), both, both, AHEAD) == agree


def test_how_far_the_receivers_clock_is_ahead() -> None:
    rows, _ = pair_of((0, MS), RECV)
    told = {0: RankClock(0, Line(30.0)), 1: RankClock(1, Line(100.0))}
    line = pairs._offset(rows, told, 0, 1)
    assert line is not None
    assert line.level_ns == 70  # 100 less 30, both against the run's clock


@pytest.mark.parametrize(
    ("sent", "received", "count"),
    [
        (range(10), range(10), 10),
        (range(9), [*range(4), *range(5, 9)], 0),  # 8 of the 9 sends: fewer than 0.9
        (range(10), [*range(4), *range(5, 10)], 9),  # 9 of 10
        (range(10), [1, 0, *range(2, 10)], 0),  # in another order
    ],
)
def test_ids_are_believed_if_their_order_is_that_of_the_messages(
    sent: Any, received: Any, count: int
) -> None:
    sent, received = list(sent), list(received)
    rows = messages(
        [(0, MS)] * len(sent), [(0, MS)] * len(received), comms_id=np.array(sent + received)
    )
    a, b = pairs._by_id(rows, np.arange(len(sent)), len(sent) + np.arange(len(received)))
    assert a.size == b.size == count
    assert (rows.comms_id[a] == rows.comms_id[b]).all()


def matched(sends: list[tuple[int, int]], recvs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Which send each recv took, by their numbers, on one clock."""
    rows = messages(sends, recvs)
    a, b = np.arange(len(sends)), len(sends) + np.arange(len(recvs))
    _, (sent, received) = pairs._matched(rows, rows.signature, a, b, Line(0.0))
    return list(zip(sent.tolist(), (received - len(sends)).tolist(), strict=True))


@pytest.mark.parametrize("late_us", [100, 2_000])
def test_a_senders_window_may_open_a_message_early(late_us: int) -> None:
    """A server sends, a worker's recv waits for the next: it ends when that one was sent."""
    sends = [(40 * MS * k, 40 * MS * k + MS // 4) for k in range(8)]
    recvs = [(at + 12 * MS, at + 40 * MS + late_us * 1000) for at, _ in sends]
    assert matched(sends, recvs) == [(k + 1, k) for k in range(7)]
    assert matched(sends[1:], recvs) == [(k, k) for k in range(7)]


def test_a_receivers_window_may_open_a_message_early() -> None:
    recvs = [(40 * MS * k, 40 * MS * k + 30 * MS) for k in range(8)]
    sends = [(at + 69 * MS, at + 71 * MS) for at, _ in recvs]
    assert matched(sends, recvs) == [(k, k + 1) for k in range(7)]


def test_what_lies_ready_when_it_is_received_pairs_by_order() -> None:
    sends = [(40 * MS * k, 40 * MS * k + MS // 4) for k in range(8)]
    recvs = [(at + 12 * MS, at + 12 * MS + MS // 10) for at, _ in sends]
    assert matched(sends, recvs) == [(k, k) for k in range(8)]


def test_one_end_recorded_longer_leaves_its_last_messages_alone() -> None:
    """Buffered sends end at once, so that ends in time would belong to others."""
    recvs = [(100 * MS + n * MS, 105 * MS + n * MS) for n in range(8)]
    sends = [(n * MS, n * MS + MS // 2 + MARGIN_NS) for n in range(9)]
    rows = messages(sends, recvs)
    how, (a, b) = pairs._matched(
        rows, rows.signature, np.arange(9), np.arange(9, 17), Line(100.0 * MS)
    )
    assert (how, a.tolist(), b.tolist()) == (pairs.ALIGNMENT, [*range(8)], [*range(9, 17)])
