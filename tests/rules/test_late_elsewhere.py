"""A rank without a trace file that is late, as groups alike tell."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, COMPUTE, Tiny

STEPS, LAYERS = 4, 3


def sharded(*, gathers_us: float = 200, reduces_us: float = 2_200, files: int = 4) -> Measures:
    """Two groups of four ranks, of which the first two of each have a file, or all.

    In the first group gathers and reductions take so long; in the other all take 200 µs.
    """
    run = Tiny(8)
    run.groups |= {"shard0": (0, 1, 2, 3), "shard1": (4, 5, 6, 7)}
    recorded = (0, 1, 4, 5) if files == 4 else tuple(range(8))
    length = 2 * LAYERS * 1_000 + LAYERS * max(400, gathers_us + reduces_us) + 400
    for step, rank in product(range(STEPS), recorded):
        begun = at = length * step
        launched = {"launch_ns": BASE_NS + 1_000 * round(begun - 100), "stream": COMPUTE}
        run.step(rank, step, begun - 110, length)
        for op, slow_us in (("all_gather", gathers_us), ("reduce_scatter", reduces_us)):
            for _ in range(LAYERS):
                took = slow_us if rank < 4 else 200
                run.kernel(rank, at, 1_000, **launched)
                its = {"group": f"shard{rank // 4}", "size": 64_000_000, **launched}
                run.collective(rank, op, at + 1_000, took, **its)
                at += 1_000 + took
        met = begun + length - 200  # of a norm, which ties the ranks' clocks
        run.collective(rank, "all_reduce", at, met - at, size=4, **launched)
        run.blocking_call(rank, "cudaStreamSynchronize", begun - 90, length - 100)
    trace = run.trace()
    return replace(trace, ranks=trace.rows("ranks").take(np.array(recorded)))


def test_one_of_the_ranks_without_a_file_is_late() -> None:
    (its,) = diagnose(sharded(), select=["straggler"]).findings
    assert its.ranks == (2, 3)
    assert its.confidence == "low"
    assert its.cost_ns == pytest.approx(STEPS * LAYERS * 2_000_000, rel=0.05)
    assert its.summary.startswith(
        "one of ranks 2–3, without a trace file, may be late: 12 reduce_scatters of "
    )
    assert "take 2.2 ms in the median once the others are there, where 0.2 ms is usual" in (
        its.summary
    )


@pytest.mark.parametrize(
    "other",
    [
        {"gathers_us": 2_200},  # their links may be slow
        {"reduces_us": 300},
        {"files": 8},
    ],
)
def test_a_slow_link_little_more_and_ranks_with_files_are_not(other: Any) -> None:
    its = sharded(**other)
    assert not [one for one in diagnose(its, select=["straggler"]).findings if one.ranks[1:]]
