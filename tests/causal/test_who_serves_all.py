"""A rank that all others exchange messages with, and nobody else: its work may be its own."""

from __future__ import annotations

from commtrace.causal.blame.awaited import serves_all
from commtrace.measures import Measures
from commtrace.synthetic import Tiny

ACTORS, ROUND_US = (1, 2, 3), 12_000


def learning(*, among_actors: bool = False) -> Measures:
    """A learner sends its actors weights, one after another, and receives what these did."""
    run = Tiny(ranks=1 + len(ACTORS), backend="gloo")
    run.groups["actors"] = ACTORS
    call = {"asynchronous": 0, "thread": 1, "size": 1 << 16}
    for turn in range(4):
        start = turn * ROUND_US
        for rank in (0, *ACTORS):
            run.step(rank, turn, start, ROUND_US)
        for actor in ACTORS:
            sent, got = start + 1_000 * actor, start + 5_000 + 1_000 * actor
            for sender, receiver, at in ((0, actor, sent), (actor, 0, got)):
                run.collective(sender, "send", at, 500, peer=receiver, **call)
                run.collective(receiver, "recv", at, 500, peer=sender, **call)
            if among_actors:
                its = {**call, "group": "actors"}
                run.collective(actor, "all_reduce", start + 9_500, 2_000, **its)
    return run.trace()


def test_a_learner_serves_its_actors() -> None:
    assert serves_all(learning(), (0,))


def test_an_actor_serves_nobody() -> None:
    assert not serves_all(learning(), (1,))


def test_also_where_the_actors_sum_something_among_themselves() -> None:
    assert serves_all(learning(among_actors=True), (0,))
