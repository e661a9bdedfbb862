"""Hosts that stall in a call while their GPU has nothing to run."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEPS = 6


def frees(took_us: float) -> Measures:
    """In each step 10 ms of compute; the host is in cudaFree, which waits for it, and longer."""
    run, length = Tiny(2), 16_130 + took_us
    for step in range(STEPS):
        for rank in range(2):
            at = step * length
            run.step(rank, step, at, length)
            run.kernel(rank, at + 100, 10_000, launch_ns=BASE_NS + round(1000 * (at + 50)))
            run.blocking_call(rank, "cudaFree", at + 60, 10_040 + took_us)
            resumed = at + 10_110 + took_us
            launched = BASE_NS + round(1e3 * resumed)
            run.collective(rank, "all_reduce", resumed + 10, 1000, size=1 << 20, launch_ns=launched)
            run.kernel(rank, resumed + 1020, 5000, launch_ns=launched + 5000)
            run.blocking_call(rank, "cudaDeviceSynchronize", resumed + 10, 6020)
    return run.trace()


@pytest.mark.parametrize("took_us", [3000, 1200])
def test_what_a_call_takes_beyond_what_it_waits_for_is_saved(took_us: float) -> None:
    (its,) = diagnose(frees(took_us), select=["launch-gap"]).findings
    assert its.ranks == (0, 1)
    assert "the host is in cudaFree" in its.advice
    assert its.cost_ns == pytest.approx(STEPS * took_us * 1000, rel=0.05)


def test_a_few_gaps_below_a_millisecond_are_stalls_too() -> None:
    """Six of 0.9 ms: too few to be the gaps of slow launches."""
    (its,) = diagnose(frees(900), select=["launch-gap"], thresholds=LEAST).findings
    assert "stalls 6 times for over 0.1 ms" in its.summary
    assert its.cost_ns == pytest.approx(STEPS * 900_000, rel=0.05)


LEAST = {"launch-gap": {"min_step_share": 0.03}}


def test_what_a_call_takes_beyond_what_it_waits_for_is_its_ranks_own() -> None:
    """Rank 1 frees memory in each step, which waits for its GPU and takes 3 ms more."""
    run = Tiny(2)
    for step in range(12):
        begin = 9_000 * step
        for rank in (0, 1):
            run.step(rank, step, begin, 9_000)
            run.kernel(rank, begin + 10, 2_000)
            came = begin + 2_100 + 3_000 * rank
            run.blocking_call(
                rank, "cudaFree" if rank else "cudaStreamSynchronize", begin + 20, came - begin - 25
            )
            run.collective(rank, "all_reduce", came, begin + 8_900 - came, size=1 << 26)
            run.blocking_call(rank, "cudaDeviceSynchronize", came + 10, begin + 8_895 - came)
    (its,) = diagnose(run.trace(), select=["straggler"]).findings
    assert its.ranks == (1,)
    assert its.cost_ns == pytest.approx(12 * 3_000_000, rel=0.05)
