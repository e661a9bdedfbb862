"""Messages that were called for together run as one kernel, which waits for all their peers."""

from __future__ import annotations

import numpy as np

from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.whatif import whatif
from commtrace.measures import Measures
from commtrace.metrics.run.link_times import link_times
from commtrace.metrics.run.waits import matched
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny


def ring(late_us: float) -> Measures:
    """Each of three computes for 1 ms, rank 2 longer, sends to the next and hears from the last.

    Each kernel is done 100 µs after rank 2 is there: rank 1 hears from rank 0, which is early,
    but sends to rank 2.
    """
    run = Tiny(ranks=3)
    begin = 0.0
    for step in range(8):
        over = begin + 1_010 + late_us + 100
        for rank in range(3):
            came = begin + 1_010 + late_us * (rank == 2)
            run.step(rank, step, begin, over - begin + 5)
            run.kernel(rank, begin + 5, came - begin - 5)
            for op, peer in (("recv", (rank - 1) % 3), ("send", (rank + 1) % 3)):
                run.collective(rank, op, came, over - came, size=1 << 26, peer=peer)
        begin = over + 5
    return run.trace()


def test_a_receiver_that_also_sends_waits_for_whom_it_sends_to() -> None:
    """That is no transfer: with rank 2 in time each step would be 3 ms shorter."""
    run = ring(late_us=3_000)
    its = run_graph(run)
    assert set(its.transfer_ns.tolist()) == {100_000}
    assert set(matched(run).operations.ints("transfer_ns").tolist()) == {100_000}


def of_link(slow_us: float, ranks: int = 6) -> Measures:
    """A ring whose messages take 100 µs once both ends are there, those from 2 to 3 longer.

    Who waited for one of these is late for its next, and so for its other neighbour.
    """
    run, free = Tiny(ranks), [0.0] * ranks
    for step in range(12):
        came = [begin + 500 for begin in free]
        done = [
            max(came[rank], came[(rank + 1) % ranks]) + (slow_us if rank == 2 else 100)
            for rank in range(ranks)
        ]
        over = [max(done[rank], done[rank - 1]) for rank in range(ranks)]
        for rank in range(ranks):
            run.step(rank, step, free[rank], over[rank] - free[rank])
            run.kernel(rank, free[rank] + 5, 490)
            for op, peer in (("recv", (rank - 1) % ranks), ("send", (rank + 1) % ranks)):
                took = over[rank] - came[rank]
                run.collective(rank, op, came[rank], took, size=1 << 26, peer=peer)
            run.rows["kernels"].pop()  # one does both
        free = over
    return run.trace()


def test_a_kernels_time_is_its_slowest_messages_alone() -> None:
    its = link_times(of_link(400))
    slow = (its.ints("sender") == 2) & (its.ints("receiver") == 3)
    assert set(its.ints("transfer_ns")[slow].tolist()) == {400_000}
    assert set(its.ints("transfer_ns")[~slow].tolist()) == {100_000}


def test_with_a_link_mended_the_other_messages_of_its_kernels_are_as_fast_as_elsewhere() -> None:
    run = of_link(400)
    (saved,) = whatif(run, ["link=2-3:671GB/s"]).edits  # 100 µs
    mended = of_link(100)
    shorter = int(run_graph(run).step_ns.sum() - run_graph(mended).step_ns.sum())
    assert saved.saved_ns is not None
    np.testing.assert_allclose(saved.saved_ns, shorter, rtol=0.01)
    (finding,) = diagnose(run, select=["slow-link"]).findings
    assert finding.ranks == (2, 3)
    np.testing.assert_allclose(finding.cost_ns, shorter, rtol=0.01)
