"""Gradients that a program averages twice by itself, in other pieces."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, STEP_US, CALL_US = 4, 40_000, 2_000
BUCKETS, PARAMETERS = [600_000, 400_000], [500_000, 300_000, 120_000, 80_000]


def averaging(*sizes: int, label: str | None = None, dtype: str = "float32") -> Measures:
    """In each step a pass, and then all_reduces of these sizes, one by one."""
    run = Tiny(2, backend="gloo")
    call = {"thread": 1, "stream": 50, "asynchronous": 0, "dtype": dtype}
    for step in range(STEPS):
        for rank in range(2):
            at = STEP_US * step
            run.step(rank, step, at, STEP_US)
            if label:
                run.step(rank, step, at, 900, label=label)
            run.op(rank, at, 10_000)
            for place, size in enumerate(sizes):
                called = at + 10_010 + place * CALL_US
                run.collective(rank, "all_reduce", called, CALL_US - 100, size=size, **call)
                run.gap(rank, called, CALL_US - 100)
            run.op(rank, at + 10_020 + len(sizes) * CALL_US, 5_000)
    return run.trace()


def found(run: Measures) -> list[str]:
    return [its.summary for its in diagnose(run, select=["redundant"]).findings]


def test_buckets_and_then_each_parameter() -> None:
    (finding,) = diagnose(averaging(*BUCKETS, *PARAMETERS), select=["redundant"]).findings
    assert finding.summary.startswith("as much is all_reduced again in every step")
    assert finding.cost_ns == pytest.approx(STEPS * len(PARAMETERS) * 1.9e6, rel=0.1)


@pytest.mark.parametrize(
    "run",
    [
        averaging(*BUCKETS, *BUCKETS),  # micro-batches
        averaging(*BUCKETS, *PARAMETERS, 4_000),  # not as many
        averaging(*BUCKETS, *PARAMETERS, dtype="int64"),
        averaging(6_000, 4_000, 5_000, 3_000, 2_000),  # metrics
        averaging(*BUCKETS, *PARAMETERS, label="DistributedDataParallel.forward"),
    ],
    ids=["the same pieces", "more", "no gradients", "little", "beside DDP"],
)
def test_what_is_no_second_time(run: Measures) -> None:
    assert not any("in other pieces" in summary for summary in found(run))
