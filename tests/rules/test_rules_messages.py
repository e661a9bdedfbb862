"""Messages of gloo between hosts: what is noted of them late, and which link is slow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.metrics.run.bandwidth import served
from commtrace.metrics.run.message_waits import message_waits
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

Took = Callable[[int, int, int], float]
RANKS, STEPS, MS = 4, 6, 1_000_000


def ring(took_us: Took, *, ranks: int = RANKS, hosts: tuple[str, ...] = ()) -> Measures:
    """In each step everybody works, sends two messages to the right, and receives two.

    Each takes ``took_us(source, destination, step)`` once both have called; all are awaited in
    the order of their calls, and noted only then.
    """
    run = Tiny(ranks, backend="gloo", hosts=hosts or tuple("abcdefgh"[:ranks]))
    for number in range(5):  # by which the hosts' clocks are compared
        for rank in range(ranks):
            more = {"thread": 1, "asynchronous": 0}
            run.collective(rank, "all_reduce", 1_000 * number, 500, size=1 << 10, **more)
    free = [10_000.0] * ranks
    for step in range(STEPS):
        called = [begin + 2_000 for begin in free]
        for rank in range(ranks):
            begin, launch = free[rank], called[rank]
            run.op(rank, begin, 2_000)
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            sent, came = (max(launch, called[peer]) + 40 for peer in (right, left))
            noted = launch + 40
            for _message in range(2):
                sent += took_us(rank, right, step)
                came += took_us(left, rank, step)
                for op, peer, done in (("send", right, sent), ("recv", left, came)):
                    noted = max(noted + 5, done)
                    run.collective(
                        rank,
                        op,
                        launch,
                        noted - launch,
                        size=1 << 18,
                        peer=peer,
                        asynchronous=1,
                        thread=1,
                        stream=1,
                        launch_ns=BASE_NS + round(1e3 * launch),
                    )
                    launch += 10
            run.gap(rank, called[rank], noted - called[rank])
            free[rank] = noted + 10
            run.step(rank, step, begin, free[rank] - begin)
    return run.trace()


def slow(*pairs: tuple[int, int], us: float = 20_000) -> Took:
    return lambda a, b, step: us if (a, b) in pairs else 300.0


def found(run: Measures) -> list[Finding]:
    return list(diagnose(run, select=["slow-link"]).findings)


def test_who_waits_for_another_message_notes_its_own_late() -> None:
    run = ring(slow((1, 2)))
    rows, waits = run.rows("collectives"), message_waits(run)
    rank, receives = rows.ints("rank"), rows.coded("op").being("recv")
    at = receives & (rank == 1)
    assert waits.noted_late[at].all()
    at = receives & (rank == 2)
    assert not waits.noted_late[at].any()
    assert np.median(waits.blocked_ns[at]) == pytest.approx(20 * MS, rel=0.02)


def test_what_is_noted_late_has_no_bandwidth() -> None:
    ends = served(ring(slow((1, 2))), late=True), served(ring(slow((1, 2))))
    sends = [int(known.coded("op").being("send").sum()) for known in ends]
    assert sends[0] == RANKS * 2 * STEPS
    assert sends[1] < sends[0]


@pytest.mark.parametrize("us", [20_000, 5_000])
def test_a_slow_link_is_named_and_costs_what_it_delays(us: float) -> None:
    (its,) = found(ring(slow((1, 2), us=us)))
    assert its.ranks == (1, 2)
    assert its.confidence == "medium"
    assert its.place == "in the send rank 1 → rank 2"
    assert its.cost_ns == pytest.approx(2 * STEPS * (us - 300) * 1e3, rel=0.1)


def test_links_alike_are_none() -> None:
    assert not found(ring(slow(us=0)))
    assert not found(ring(lambda a, b, step: 20_000.0))


def test_what_is_fast_at_times_is_no_links_limit() -> None:
    times = (300.0, 9_000.0, 20_000.0, 2_000.0, 30_000.0, 14_000.0)
    assert not found(ring(lambda a, b, step: times[step] if (a, b) == (1, 2) else 300.0))


def test_a_host_all_of_whose_links_are_slow_is_named_with_doubt() -> None:
    (its,) = found(ring(slow((1, 2), (2, 3)), ranks=6))
    assert its.ranks == (2,)
    assert its.confidence == "low"
    assert "from and to host c" in its.summary
    assert "link or host, the trace does not show which" in its.summary


def test_on_one_host_a_rank_that_is_slow_with_everybody_is_no_link() -> None:
    assert not found(ring(slow((1, 2), (2, 3)), ranks=6, hosts=("a",)))
