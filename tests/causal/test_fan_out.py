"""What one rank sends to all others is compared with what they receive."""

from __future__ import annotations

import numpy as np

from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work
from commtrace.measures import Measures
from commtrace.synthetic import Tiny

MIB = 1 << 20


def server(writes_us: float) -> Measures:
    """In each of its steps rank 0 writes for so long, sends to all, and gets their answers.

    The others, who have no steps, compute for 4 ms behind what they receive, and wait again.
    """
    run = Tiny(ranks=4)
    cycle = 5200 + writes_us
    for step in range(10):
        start = step * cycle
        run.step(0, step, start, cycle)
        run.kernel(0, start, writes_us)
        for n in range(3):
            run.collective(0, "send", start + writes_us + 100 * n, 100, size=MIB, peer=n + 1)
        for rank in (1, 2, 3):
            sent = start + writes_us + 100 * rank - 100
            posted = max(start - 100, 0)
            run.collective(rank, "recv", posted, sent + 100 - posted, size=MIB, peer=0)
            run.kernel(rank, sent + 100, 4000)
            done = start + writes_us + 4600 + 100 * rank
            run.collective(rank, "send", sent + 4110, done - sent - 4110, size=2 * MIB, peer=0)
            run.collective(0, "recv", done - 100, 100, size=2 * MIB, peer=rank)
    return run.trace()


def test_a_server_works_more_than_those_that_wait_for_it() -> None:
    run = server(3000)
    calls, work = run_graph(run).calls, own_work(run)
    heads = np.flatnonzero((calls.rank == 0) & calls.is_send)[::3]
    assert (work.excess_ns[heads[1:]] > 2.8e6).all()


def test_what_it_sends_is_alike_for_all() -> None:
    calls = run_graph(server(3000)).calls
    to_all = [calls.in_place[(calls.rank == 0) & calls.is_send][::3]]
    to_all += [calls.in_place[(calls.rank == rank) & ~calls.is_send] for rank in (1, 2, 3)]
    assert all(np.array_equal(its, to_all[0]) for its in to_all)


def test_in_gossip_nobody_is_a_server() -> None:
    """Each of three sends to both others."""
    run = Tiny(ranks=3)
    for step in range(4):
        for rank in range(3):
            run.step(rank, step, 1000 * step, 1000)
            for n, other in enumerate({0, 1, 2} - {rank}):
                at = 1000 * step + 300 + 50 * n
                run.collective(rank, "send", at, 40, size=MIB, peer=other, stream=20)
                run.collective(rank, "recv", at, 40, size=MIB, peer=other, stream=21)
    calls = run_graph(run.trace()).calls
    sent, received = (set(calls.in_place[its].tolist()) for its in (calls.is_send, ~calls.is_send))
    assert sent.isdisjoint(received)
