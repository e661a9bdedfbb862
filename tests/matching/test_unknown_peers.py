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
