"""Sends and recvs whose peer only the other end tells, or nobody but by being left."""

from __future__ import annotations

from commtrace.matching import match
from commtrace.synthetic import Tiny

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


def ring(*, ranks: int = 4, sends: int = 1) -> Tiny:
    """GPUs that each send and receive in one kernel, which are done by turns; no peer is told."""
    run = Tiny(ranks)
    for step in range(4):
        for rank in range(ranks):
            run.collective(rank, "all_reduce", 10_000 * step + 7 * rank, 100, size=1 << 20)
            for turn in range(3):
                begin = 10_000 * step + 1_000 + 2_000 * turn + 5 * rank
                took = 400 + 150 * ((7 * rank + turn) % 5)
                for op in ["recv"] + ["send"] * (sends if rank == 0 else 1):
                    run.collective(rank, op, begin, took, size=ROW, seq=None)
    return run


def test_kernels_that_send_and_receive_hand_on_around_a_ring() -> None:
    assert alone(ring()) == 0
    assert alone(ring(sends=2)) == 4 * 3 * (4 * 2 + 1)
