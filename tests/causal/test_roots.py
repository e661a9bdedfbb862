"""Who sends to a root waits for it."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, LEARNS_US, PLAYS_US, SENDS_US, BETWEEN_US = 8, 25_000, 5_000, 200, 20
ROOT = {"thread": 1, "stream": 50, "asynchronous": 0, "root": 0, "size": 1 << 14}


def playing(late_us: int, gathers: int = 3, ranks: int = 3) -> Measures:
    """Actors play and send what they did in gathers; the root learns and broadcasts.

    The last actor begins to send so much later: the root waits for it in the first gather, and who
    has sent that already for the root in the second.
    """
    run, now = Tiny(ranks, backend="gloo"), 0.0
    for step in range(STEPS):
        begun, actors = now, list(range(1, ranks))
        free = dict.fromkeys(range(ranks), begun)
        for rank in actors:
            run.op(rank, begun, PLAYS_US)
            late = late_us * (rank == actors[-1])
            if late:
                run.gap(rank, begun + PLAYS_US, late)
            free[rank] = begun + PLAYS_US + late + BETWEEN_US
        root = begun + BETWEEN_US
        for _ in range(gathers):
            done = max(root, *(free[rank] for rank in actors)) + SENDS_US
            for rank in actors:
                called = free[rank]
                sent = max(called, root) + SENDS_US / 2
                run.collective(rank, "gather", called, sent - called, **ROOT)
                run.gap(rank, called, sent - called)
                free[rank] = sent + BETWEEN_US
            run.collective(0, "gather", root, done - root, **ROOT)
            run.gap(0, root, done - root)
            root = done + BETWEEN_US
        run.op(0, root, LEARNS_US)
        sends = root + LEARNS_US + BETWEEN_US
        now = sends + SENDS_US
        for rank in range(ranks):
            called = free[rank] if rank else sends
            run.collective(rank, "broadcast", called, now - called, **ROOT)
            run.gap(rank, called, now - called)
            run.step(rank, step, begun, now + BETWEEN_US - begun)
        now += BETWEEN_US
    return run.trace()


def found(run: Measures) -> list[Finding]:
    return list(diagnose(run, select=["straggler"]).findings)


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_late_actor_delays_the_root_and_who_sends_to_it_next(ranks: int) -> None:
    late_us = 30_000
    its = [one for one in found(playing(late_us, ranks=ranks)) if one.ranks == (ranks - 1,)]
    assert len(its) == 1
    assert its[0].cost_ns == pytest.approx(STEPS * late_us * 1e3, rel=0.05)


def test_actors_that_are_not_late_are_no_finding() -> None:
    assert all(0 in one.ranks for one in found(playing(0)))
