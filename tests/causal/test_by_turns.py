"""Ranks that have a part of their own, for which others wait, and then they for the others."""

from __future__ import annotations

import pytest

from commtrace.causal.blame.awaited import works_by_turns
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny


def learning(acts_us: float, learns_us: float) -> Measures:
    """Two actors act and send, rank 0 receives, learns, and sends."""
    run, begin = Tiny(3), 0.0
    for step in range(6):
        launched = {"launch_ns": BASE_NS + round(1e3 * (begin + 5))}
        acted, over = begin + acts_us + 20, begin + acts_us + learns_us + 300
        for rank in range(3):
            run.step(rank, step, begin, over - begin)
        for actor in (1, 2):
            run.kernel(actor, begin + 10, acts_us, **launched)
            trajectory = {"size": 1 << 20, "stream": 20 + actor}
            run.collective(actor, "send", acted, 100, peer=0, **trajectory)
            run.collective(0, "recv", begin + 10, acts_us + 110, peer=actor, **trajectory)
            weights = {"size": 1 << 22, "stream": 20 + actor}
            run.collective(actor, "recv", acted + 110, learns_us + 150, peer=0, **weights)
            run.collective(0, "send", acted + learns_us + 115, 145, peer=actor, **weights)
        run.kernel(0, acted + 105, learns_us, **launched)
        begin = over
    return run.trace()


@pytest.mark.parametrize(
    ("acts_us", "learns_us", "turns"), [(8000, 4000, True), (1000, 8000, False)]
)
def test_a_learner_that_waits_for_its_actors_longer_than_they_for_it(
    acts_us: float, learns_us: float, turns: bool
) -> None:
    run = learning(acts_us, learns_us)
    assert works_by_turns(run, (0,)) == turns
    assert not works_by_turns(run, (0, 1, 2))


def updating(acts_us: float, learns_us: float, *, together: bool, among_us: float = 0) -> Measures:
    """The learner broadcasts, and receives from actors whose sends tell no peer.

    All may average something; or the actors by themselves, for so long.
    """
    run, begin = Tiny(3), 0.0
    run.groups |= {"actors": (1, 2)}
    for step in range(6):
        acted = begin + 120 + acts_us
        over = acted + 100 + learns_us + 100
        for rank in range(3):
            run.step(rank, step, begin, over - begin)
            run.collective(rank, "broadcast", begin, 100, size=1 << 20, root=0)
            if together:
                run.collective(rank, "all_reduce", begin + 101, 10, size=4)
        for actor in (1, 2):
            if among_us:
                own = {"group": "actors", "stream": 30}
                run.collective(actor, "all_reduce", begin + 101, among_us, size=64, **own)
            run.kernel(actor, begin + 115, acts_us)
            run.collective(actor, "send", acted, 90, size=1 << 20, stream=20 + actor)
            run.collective(0, "recv", begin + 115, acts_us + 95, size=1 << 20, stream=20 + actor)
        run.kernel(0, acted + 100, learns_us)
        for rank in (1, 2):
            run.collective(rank, "broadcast", acted + 95, learns_us + 100, size=1 << 20, root=0)
        run.collective(0, "broadcast", over - 100, 95, size=1 << 20, root=0)
        begin = over
    return run.trace()


@pytest.mark.parametrize(
    ("together", "among_us", "turns"),
    [(False, 0, True), (True, 0, False), (False, 12, True), (False, 2_500, False)],
)
def test_a_hub_that_waits_a_quarter_as_long_has_its_part_in_turn(
    together: bool, among_us: float, turns: bool
) -> None:
    run = updating(3000, 8000, together=together, among_us=among_us)
    assert works_by_turns(run, (0,)) == turns
