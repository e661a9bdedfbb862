"""A host that asks its device for one value after another: what its rank does by itself."""

from __future__ import annotations

import pytest

from commtrace.causal.edits.run_edits import as_measured, step_ns, typical
from commtrace.causal.replay.graph import changed
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEP_US, TRIP_US = 2_000, 40


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def asking(slow: int, others: int) -> Measures:
    """Rank 1 asks so many times in each step, the others less often; then all of them reduce.

    In each 40 µs a host launches a kernel, which starts 8 µs later and runs for 3, and a copy of
    four bytes behind it, and resumes 9 µs after that; then it is busy for 15 µs.
    """
    run = Tiny(ranks=3)
    for step in range(8):
        for rank in range(3):
            begun = STEP_US * step
            run.step(rank, step, begun, STEP_US)
            trips = slow if rank == 1 else others
            for trip in range(trips):
                now = begun + TRIP_US * trip
                run.kernel(rank, now + 8, 3, launch_ns=at(now))
                run.copy(rank, now + 15, 1, kind="DtoH", size=4, launch_ns=at(now + 6))
                run.blocking_call(rank, "cudaStreamSynchronize", now + 8, 17)
            came, over = begun + TRIP_US * trips + 10, begun + TRIP_US * slow + 110
            run.collective(
                rank, "all_reduce", came, over - came, size=1 << 20, launch_ns=at(came - 8)
            )
            run.blocking_call(rank, "cudaStreamSynchronize", came, over - came + 5)
    return run.trace()


@pytest.mark.parametrize("others", [2, 10])
def test_all_that_its_round_trips_take_is_saved_with_them(others: int) -> None:
    run = asking(45, others)
    measured = as_measured(run)
    mended = changed(measured, typical(run, [1]))
    steps = step_ns(run, [measured, mended])
    saved_us = (steps[1:7, 0] - steps[1:7, 1]) / 1e3
    assert saved_us.tolist() == pytest.approx([TRIP_US * (45 - others)] * 6, rel=0.05)


def test_it_is_a_straggler() -> None:
    finding = diagnose(asking(45, 3), select=["straggler"]).findings[0]
    assert finding.ranks == (1,)
