"""Ranks that exchange the edges of their domains: those in the middle call twice as often."""

from __future__ import annotations

import pytest

from commtrace.causal.blame.culprits import culprits
from commtrace.measures import Measures
from commtrace.synthetic import Tiny

STEPS, EXCHANGES, WORK_US, SIZE = 6, 4, 2_000, 1 << 20


def strips(works: tuple[float, ...], *, ahead: bool) -> Measures:
    """Each computes so many times as long, and swaps with its neighbours, for whom it waits.

    One side after the other, as calls are made; it may call ``ahead``, and compute meanwhile.
    Behind all exchanges gradients are averaged.
    """
    ranks = range(len(works))
    run, free = Tiny(len(works), backend="gloo"), [0.0] * len(works)
    own = {"thread": 1, "stream": 50, "size": SIZE}
    for step in range(STEPS):
        begun = free[:]
        for _ in range(EXCHANGES):
            took = [work * WORK_US for work in works]
            calls = [since + time * (not ahead) for since, time in zip(free, took, strict=True)]
            for rank in ranks:
                begin = calls[rank] + 50 if ahead else free[rank]
                run.op(rank, begin, took[rank])
                over = begin + took[rank] + 5
                at = calls[rank]
                for peer in (rank - 1, rank + 1):
                    if peer not in ranks:
                        continue
                    done = max(calls[rank], calls[peer]) + 400
                    noted = max(done, begin + took[rank] + 5)
                    for op in ("recv", "send"):
                        at += 5
                        swap = {"peer": peer, "asynchronous": 1, **own}
                        run.collective(rank, op, at, noted - at, **swap)
                    over = max(over, noted)
                run.gap(rank, begin + took[rank] + 1, over - begin - took[rank] - 1)
                free[rank] = over + 50
        over = max(free) + 500
        for rank in ranks:
            run.collective(rank, "all_reduce", free[rank], over - free[rank], asynchronous=0, **own)
            run.gap(rank, free[rank], over - free[rank])
            run.step(rank, step, begun[rank], over + 20 - begun[rank])
        free = [over + 20] * len(works)
    return run.trace()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("works", "named", "more"),
    [
        ((1, 1, 1), (), 0),
        ((1, 1.7, 1), (1,), 0.7),
        ((1, 1, 1.7), (2,), 0.7),
        ((1, 1, 1.7, 1, 1), (2,), 0.7),
    ],
)
def test_one_between_two_others_that_has_more_to_do_is_named(
    works: tuple[float, ...], named: tuple[int, ...], more: float, ahead: bool
) -> None:
    found = culprits(strips(works, ahead=ahead), 0.05).found
    assert [its.ranks for its in found] == ([named] if named else [])
    for its in found:
        lost_us = EXCHANGES * more * WORK_US
        assert its.saved_ns / STEPS / 1e3 == pytest.approx(lost_us, rel=0.15)
