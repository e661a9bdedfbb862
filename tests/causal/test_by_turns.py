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
