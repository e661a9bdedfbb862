"""Messages that were called for together run as one kernel, which waits for all their peers."""

from __future__ import annotations

from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import Measures
from commtrace.metrics.run.waits import matched
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
