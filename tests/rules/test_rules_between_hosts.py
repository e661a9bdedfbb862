"""What GPUs move between hosts against what they move within them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from benchmarks.faults.loop import Loop
from commtrace.causal.run.run_graph import run_graph
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.rules._slow_links import waits_left
from commtrace.synthetic import Tiny

Job = Callable[[float, float], Measures]
MB = 1_000_000
COUNT, LATENCY_US = 12, 8.4 + 14  # NCCL's, from a host to another


def tied(run: Tiny) -> Tiny:
    """The hosts' clocks are, by what all are done with at once."""
    for i, rank in product(range(COUNT), range(run.ranks)):
        run.collective(rank, "barrier", 9_000 * i + 8_900, 10)
    return run


def reduced(within_us: float, between_us: float) -> Measures:
    """Pairs of ranks sum up as much within their host, then with one of the other."""
    run = Tiny(ranks=4, hosts=("a", "a", "b", "b"))
    run.groups = {"near": (0, 1), "next": (2, 3), "far": (0, 2), "farther": (1, 3)}
    for i, rank in product(range(COUNT), range(4)):
        near, far = "near" if rank < 2 else "next", "farther" if rank % 2 else "far"
        run.collective(rank, "all_reduce", 5_000 * i, within_us, group=near, size=8 * MB)
        run.collective(rank, "all_reduce", 5_000 * i + 500, between_us, group=far, size=8 * MB)
    return run.trace()


def passed_on(within_us: float, between_us: float) -> Measures:
    """A message goes from rank to rank, all of one group; in the middle from host to host."""
    run = tied(Tiny(ranks=4, hosts=("a", "a", "b", "b")))
    for i, sender in product(range(COUNT), range(3)):
        took = between_us if sender == 1 else within_us
        at = 9_000 * i + (0, within_us, within_us + between_us)[sender]
        its = {"start_us": at, "duration_us": took, "size": 8 * MB}
        run.collective(sender, "send", peer=sender + 1, **its)
        run.collective(sender + 1, "recv", peer=sender, **its)
    return run.trace()


def found(run: Measures) -> list[Finding]:
    return list(diagnose(run, select=["slow-link"]).findings)


@pytest.mark.parametrize("job", [reduced, passed_on])
def test_more_than_20_times_as_slow_is_no_adapter_of_each_gpu(job: Job) -> None:
    (its,) = found(job(50, 4_000))
    assert its.confidence == "low"
    assert "the hosts a and b reach 2.00 GB/s, those within hosts 160;" in its.summary
    assert its.cost_ns == pytest.approx(COUNT * (4_000 - 10 * 50 - LATENCY_US) * 1e3, rel=0.01)


@pytest.mark.parametrize("job", [reduced, passed_on])
def test_less_may_be_what_the_network_gives(job: Job) -> None:
    assert not found(job(50, 900))


def test_nor_is_what_small_ones_take_for_latency() -> None:
    """At a twentieth of 600 GB/s 2 MB take 117 µs, and as long for NCCL's latency on four hosts."""
    run = Tiny(ranks=8, hosts=tuple("aabbccdd"))
    run.groups |= {f"near{rank}": (rank, rank + 1) for rank in range(0, 8, 2)}
    for i, rank in product(range(COUNT), range(8)):
        near = f"near{rank - rank % 2}"
        run.collective(rank, "all_reduce", 2_000 * i, 100, group=near, size=60 * MB)
        run.collective(rank, "all_reduce", 2_000 * i + 500, 230, size=2 * MB)
    assert not found(run.trace())


def test_a_pair_that_stands_out_is_told_instead() -> None:
    run = tied(Tiny(ranks=8, hosts=tuple("aabbccdd")))
    for i, sender in product(range(COUNT), range(7)):
        took = {1: 4_000, 3: 1_000, 5: 1_000}.get(sender, 50)
        its = {"start_us": 9_000 * i + 1_000 * sender, "duration_us": took, "size": 8 * MB}
        run.collective(sender, "send", peer=sender + 1, **its)
        run.collective(sender + 1, "recv", peer=sender, **its)
    (its,) = found(run.trace())
    assert its.ranks == (1, 2)


def test_who_waits_behind_such_messages_waits_for_the_network() -> None:
    """The last of four ranks waits for three messages, one of which takes 4 ms longer."""
    loop = Loop(5, ranks=4, hosts=("a", "a", "b", "b"))
    loop.gb_s, loop.latency_us, loop.spread = 160, 0, 0
    for _ in range(COUNT):
        with loop.step():
            for sender in range(3):
                loop.message(sender, sender + 1, 8 * MB, us=4_000 * (sender == 1))
            loop.together("barrier", None, wait=True)
    calls = run_graph(trace := loop.trace()).calls
    last = np.flatnonzero((calls.rank == 3) & calls.is_p2p)
    left = (50 + 10 * 50 + LATENCY_US) / (50 + 4_050)
    assert waits_left(trace)(last) == pytest.approx(left, rel=0.05)
