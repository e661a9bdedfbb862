"""Sends and recvs whose peer only the other end tells, or nobody but by being left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commtrace.matching import match
from commtrace.synthetic import Tiny
from commtrace.trace_tables import GROUPS

ROW, COLUMN = 1 << 10, 1 << 12


def halos(*, known: tuple[tuple[int, int], ...], column: int = COLUMN) -> Tiny:
    """A mesh of 2 by 2, in which each sends to the other of its row, then of its column.

    Ranks tell their peers where they are ``known``.
    """
    run = Tiny(4, backend="gloo")
    for step in range(5):
        for rank in range(4):
            for number, (peer, size) in enumerate(((rank ^ 1, ROW), (rank ^ 2, column))):
                told = peer if (rank, peer) in known else None
                for op in ("recv", "send"):
                    at = 1000 * step + 100 * number + rank
                    run.collective(rank, op, at, 50, size=size, peer=told, seq=None)
    return run


def alone(run: Tiny) -> int:
    return int((match(run.trace()).matches.ints("present") == 1).sum())


def test_peers_that_the_other_end_names_are_known() -> None:
    assert alone(halos(known=((1, 0), (1, 3), (2, 0), (3, 2)))) == 0


def test_the_only_two_that_are_left_are_each_others() -> None:
    assert alone(halos(known=((1, 0), (1, 3), (2, 0)))) == 0


def test_of_several_that_it_may_be_none_is_taken() -> None:
    run = halos(known=(), column=ROW)
    assert alone(run) == 5 * 4 * 2 * 2


def stages(*, apart_us: int = 0, skip: int = 0) -> Tiny:
    """Three GPUs in a row: in each step three micro-batches go forward, then back; no peer is told.

    Sends end ``apart_us`` before their recvs; stage 0 sends to the ``skip`` after the next, too.
    """
    run = Tiny(3)
    for step in range(4):
        at = 10_000 * step
        for rank in range(3):
            run.collective(rank, "all_reduce", at + 7 * rank, 100 - 7 * rank, size=1 << 20)
        for micro in range(3):
            for hop, (source, target) in enumerate(((0, 1), (1, 2), (2, 1), (1, 0))):
                begin = at + 1000 + 2000 * micro + 400 * hop + 2
                target = target + skip if source == 0 else target
                run.collective(source, "send", begin, 200 - apart_us, size=ROW, seq=None)
                run.collective(target, "recv", begin - 30, 230, size=ROW, seq=None)
    return run


def test_messages_of_gpus_are_of_the_neighbour_that_they_end_with() -> None:
    found = match(stages().trace()).matches
    together = found.ints("operation")[found.ints("present") == 2]
    assert len(set(together.tolist())) == 4 * 3 * 4
    assert alone(stages()) == 0


def test_messages_that_end_with_no_neighbours_stay_alone() -> None:
    assert alone(stages(apart_us=100)) == 4 * 3 * 4 * 2
    assert alone(stages(skip=1)) == 0  # around a ring the last is the first one's neighbour


Partners = Callable[[int, int], tuple[int, ...]]
"""With whom a rank exchanges in a turn: each sends to the first and receives from the last."""


def exchanges(
    partners: Partners,
    *,
    late_us: Callable[[int, int], float] = lambda rank, turn: 0.0,
    ranks: int = 4,
) -> Tiny:
    """GPUs that send and receive in one kernel, six times; no peer is told."""
    run = Tiny(ranks)
    for step in range(4):
        for rank in range(ranks):
            run.collective(rank, "all_reduce", 20_000 * step + 7 * rank, 100, size=1 << 20)
        for turn in range(6):
            at = 20_000 * step + 1_000 + 3_000 * turn
            begin = [at + 3 * rank + late_us(rank, turn) for rank in range(ranks)]
            for rank in range(ranks):
                end = max(begin[one] for one in (rank, *partners(rank, turn))) + 200
                for op in ("recv", "send"):
                    run.collective(rank, op, begin[rank], end - begin[rank], size=ROW, seq=None)
    return run


def around(rank: int, turn: int, ranks: int = 4) -> tuple[int, ...]:
    return (rank + 1) % ranks, (rank - 1) % ranks


def matched(run: Tiny) -> set[tuple[int, ...]]:
    """The ranks of all operations of two."""
    trace = run.trace()
    found = match(trace).matches
    rank = trace.rows("collectives").ints("rank")
    of: dict[int, list[int]] = {}
    for one, number in zip(rank.tolist(), found.ints("operation").tolist(), strict=True):
        of.setdefault(number, []).append(one)
    return {tuple(sorted(its)) for its in of.values() if len(its) == 2}


RING = {(0, 1), (1, 2), (2, 3), (0, 3)}


def by_turns(rank: int, turn: int) -> float:
    return 400.0 * ((7 * rank + 3 * turn) % 5)


@pytest.mark.parametrize(
    "late_us",
    [by_turns, lambda rank, turn: 0.0, lambda rank, turn: 2_000.0 * (rank == 2 and turn == 3)],
)
def test_kernels_that_send_and_receive_hand_on_around_a_ring(
    late_us: Callable[[int, int], float],
) -> None:
    """Also where all are mostly done at once."""
    run = exchanges(around, late_us=late_us)
    assert alone(run) == 0
    assert matched(run) == RING


@pytest.mark.parametrize(
    ("partners", "pairs"),
    [
        (lambda rank, turn: (rank ^ 2,), {(0, 2), (1, 3)}),
        (lambda rank, turn: (rank ^ (1 + turn % 2),), {(0, 1), (2, 3), (0, 2), (1, 3)}),
    ],
)
def test_kernels_of_two_that_are_done_together_swap(
    partners: Partners, pairs: set[tuple[int, ...]]
) -> None:
    run = exchanges(partners, late_us=by_turns)
    assert matched(run) == pairs


def test_kernels_that_wait_for_no_neighbour_are_of_no_ring() -> None:
    run = exchanges(lambda rank, turn: (), late_us=lambda rank, turn: 500.0 * rank)
    assert not matched(run)


def test_groups_whose_ranks_are_not_listed_tell_nothing() -> None:
    trace = exchanges(around).trace()
    groups = [{**row, "ranks": None} for row in trace.rows("groups").dicts()]
    found = match(replace(trace, groups=GROUPS.of_dicts(groups))).matches
    assert int((found.ints("present") == 1).sum()) == 4 * 6 * 4 * 2


def test_stages_that_were_not_recorded_leave_the_others_theirs() -> None:
    """Of the last stage there is no file: what the second sends to it and receives stays alone."""
    trace = stages().trace()
    calls = trace.rows("collectives")
    fewer = replace(trace, collectives=calls.take(calls.ints("rank") < 2))
    assert int((match(fewer).matches.ints("present") == 1).sum()) == 4 * 3 * 2


def test_of_two_ranks_each_sends_to_the_other_though_no_clock_is_known() -> None:
    """Two pairs send as much, and nothing else ties their ranks' clocks, which are far apart."""
    run = Tiny(4, hosts=("a", "b", "c", "d"))
    run.groups = {"pp0": (0, 2), "pp1": (1, 3)}
    for micro in range(3):
        for rank in range(4):
            its: dict[str, Any] = {"size": ROW, "seq": None, "group": f"pp{rank % 2}"}
            at = 1_000 * micro + 4_500 * rank
            run.collective(rank, ("send", "recv")[rank // 2], at, 200, **its)
    assert alone(run) == 0


def served(*, done_before_us: int = 0, workers: tuple[int, ...] = (2, 3, 1, 1, 3, 2)) -> Tiny:
    """Rank 0 receives from whoever is first; small messages are sent before it asks for them."""
    run = Tiny(4, backend="gloo")
    for rank in range(4):
        run.collective(rank, "barrier", 7 * rank, 100 - 7 * rank, size=0)
    for turn, worker in enumerate(workers):
        at = 1000 + 500 * turn
        run.collective(0, "recv", at, 100, size=ROW, seq=None)
        run.collective(worker, "send", at - 90, 185 - done_before_us, size=ROW, peer=0, seq=None)
        run.collective(0, "send", at + 150, 50, size=ROW, peer=worker, seq=None)
        run.collective(worker, "recv", at + 140, 65, size=ROW, peer=0, seq=None)
    return run


@pytest.mark.parametrize("done_before_us", [0, 120])
def test_what_comes_from_any_source_is_whose_send_is_done_with_it(done_before_us: int) -> None:
    trace = served(done_before_us=done_before_us).trace()
    rows, found = trace.rows("collectives"), match(trace).matches
    operation, rank, op = found.ints("operation"), rows.ints("rank"), rows.coded("op")
    sender = dict(zip(operation[op.being("send")], rank[op.being("send")], strict=True))
    received = op.being("recv") & (rank == 0)
    assert [sender[one] for one in operation[received]] == [2, 3, 1, 1, 3, 2]
    assert alone(served(done_before_us=done_before_us)) == 0


def test_what_hardly_any_send_explains_came_from_ranks_without_a_trace() -> None:
    run = served()
    for turn in range(3):
        run.collective(0, "recv", 5000 + 500 * turn, 100, size=ROW, seq=None)
    assert alone(run) == 3 + 2 * 6
