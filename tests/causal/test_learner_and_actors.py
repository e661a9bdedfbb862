"""A learner beside its actors: it alone marks steps, and what they do is none of its work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from commtrace.arrays import NULL
from commtrace.causal.blame.culprits import culprits
from commtrace.measures import Measures
from commtrace.table import Rows
from tests.gloo_loop import gloo_loop

PLAY_US, LEARN_US = 20_000, 12_000


def rounds(*, slow_us: float = 0, marked_by: int = 1, learn_us: float = LEARN_US) -> Measures:
    """Actors play, which all gather; the learner, rank 0, learns, and sends what they play with.

    The last actor is slower; so many ranks mark the rounds.
    """

    def play(rank: int, step: int) -> float:
        return 300 if rank == 0 else PLAY_US + slow_us * (rank == 3) + 400 * ((rank + step) % 3)

    def learn(rank: int, step: int) -> float:
        return learn_us if rank == 0 else 400 + 50 * ((rank + step) % 3)

    run = gloo_loop(("all_gather", play), ("broadcast", learn), ranks=4, steps=8, size=1 << 20)
    steps, calls = run.rows("steps"), run.rows("collectives")
    marked = calls.ints("rank") < marked_by
    step = np.where(marked, calls.ints("step"), NULL)
    return replace(
        run,
        steps=steps.take(np.flatnonzero(steps.ints("rank") < marked_by)),
        collectives=Rows(calls.table, {**calls.columns, "step": step}, len(calls)),
    )


@pytest.mark.parametrize("marked_by", [1, 4])
def test_actors_wait_for_the_learner(marked_by: int) -> None:
    """Also where it alone marks steps; nobody is late beside it, as some actors beside others."""
    (its,) = culprits(rounds(marked_by=marked_by), 0.05).found
    assert its.ranks == (0,)
    assert its.steps_ns / 1e6 == pytest.approx(8 * [LEARN_US / 1e3 - 0.45], abs=0.4)
    assert its.doubt is not None


@pytest.mark.parametrize("marked_by", [1, 4])
def test_a_slow_actor_is_named_before_the_learner(marked_by: int) -> None:
    found = culprits(rounds(marked_by=marked_by, slow_us=16_000), 0.05).found
    assert [its.ranks for its in found] == [(3,), (0,)]
    assert found[0].steps_ns[1:] / 1e6 == pytest.approx(7 * [16], abs=1)
