"""A host that is late in every step, but waits for its GPU in every other one only."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

LOADS_US = 20_000
PAIRS = 2
WAITS_IN_BOTH_US = 51_000  # of a step: a kernel, and its all_reduce


def loading(late_us: float) -> Measures:
    """Steps in pairs, of which the second one ends with a wait for the GPU."""
    run = Tiny(ranks=2)
    length = late_us + 2 * WAITS_IN_BOTH_US
    for pair in range(PAIRS):
        begin = pair * length
        second = begin + late_us + WAITS_IN_BOTH_US
        for rank, loads_us in enumerate((late_us, 10)):
            called = begin + loads_us, begin + 2 * loads_us + 20
            starts = begin + loads_us + 10, second
            ends, steps = (second, begin + length), (2 * pair + 1, 2 * pair + 2)
            for call, start, done, step in zip(called, starts, ends, steps, strict=True):
                host = {"launch_ns": BASE_NS + round(1000 * call), "step": step}
                run.kernel(rank, start, 50_000 - 20, **host)
                run.collective(
                    rank, "all_reduce", start + 50_000, done - start - 50_000, size=1 << 20, **host
                )
            run.step(rank, steps[0], begin, called[0] + 15 - begin)
            run.step(rank, steps[1], called[0] + 16, begin + length - called[0] - 16)
            waits = called[1] + 20
            run.blocking_call(rank, "cudaStreamSynchronize", waits, begin + length - waits)
    return run.trace()


def test_it_is_told_by_the_steps_that_it_delays() -> None:
    (finding, *_) = diagnose(loading(LOADS_US), select=["straggler"]).findings
    assert finding.ranks == (0,)
    assert finding.summary.startswith("rank 0 stalls for 20 ms in 2 of 4 steps")
    assert finding.cost_ns == pytest.approx(PAIRS * LOADS_US * 1e3, rel=0.02)


def test_one_that_is_not_late_is_not_told() -> None:
    assert not diagnose(loading(20), select=["straggler"]).findings
