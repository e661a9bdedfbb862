"""Gradients that are all_reduced whole, of which each rank updates a part."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.metrics.run.sharded_updates import reduced_whole
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, STEP_US = 4, 10_000
GRADIENTS = 64_000_000


def training(gathered: int, *, first: str = "all_reduce", backend: str = "nccl") -> Measures:
    """Gradients in two buckets, an update, and then parameters in one gather, all exposed."""
    run = Tiny(ranks=2, backend=backend)
    for step in range(STEPS):
        for rank in range(2):
            at = step * STEP_US
            run.step(rank, step, at, STEP_US)
            run.kernel(rank, at + 100, 900, name="gemm")
            for bucket in range(2):
                run.collective(rank, first, at + 1_000 + 2_000 * bucket, 1_990, size=GRADIENTS // 2)
            run.kernel(rank, at + 5_000, 500, name="adam")
            run.collective(rank, "all_gather", at + 5_600, 2_000, size=gathered)
            run.kernel(rank, at + 7_700, 2_000, name="gemm")
    return run.trace()


def test_as_much_is_gathered_as_was_reduced() -> None:
    its = reduced_whole(training(GRADIENTS))
    assert len(its) == 2 * STEPS
    assert set(its.coded("op").decoded()) == {"all_reduce"}


def test_half_of_their_time_is_saved() -> None:
    (found,) = diagnose(training(GRADIENTS), select=["byte-inflation"]).findings
    assert found.summary.startswith("all_reduces bring 64 MB of gradients a step to every rank")
    assert found.cost_ns == pytest.approx(STEPS * 1_990_000, rel=0.02)


@pytest.mark.parametrize(
    "run",
    [
        training(GRADIENTS // 4),  # embeddings, say
        training(GRADIENTS, first="reduce_scatter"),
        training(GRADIENTS, backend="gloo"),
    ],
    ids=["other elements", "each rank gets its part", "gloo"],
)
def test_what_is_as_it_should_be(run: Measures) -> None:
    assert not len(reduced_whole(run))


def test_a_gather_before_the_reductions_is_of_something_else() -> None:
    run = Tiny(ranks=2)
    for step in range(STEPS):
        for rank in range(2):
            run.step(rank, step, step * STEP_US, STEP_US)
            run.collective(rank, "all_gather", step * STEP_US + 100, 2_000, size=GRADIENTS)
            run.collective(rank, "all_reduce", step * STEP_US + 3_000, 2_000, size=GRADIENTS)
    assert not len(reduced_whole(run.trace()))


def test_a_gather_of_what_a_reduce_scatter_left_in_parts() -> None:
    run = Tiny(ranks=2)
    for step in range(STEPS):
        for rank in range(2):
            at = step * STEP_US
            run.step(rank, step, at, STEP_US)
            for each, op in enumerate(("all_reduce", "reduce_scatter", "all_gather")):
                run.collective(rank, op, at + 100 + 2_500 * each, 2_000, size=GRADIENTS)
    assert not len(reduced_whole(run.trace()))


def test_what_a_rank_gets_is_told_however_many_groups_there_are() -> None:
    run = Tiny(ranks=4)
    run.groups = {"1": (0, 1), "2": (2, 3)}
    for step in range(STEPS):
        for rank in range(4):
            at = step * STEP_US
            run.step(rank, step, at, STEP_US)
            for each, op in enumerate(("all_reduce", "all_gather")):
                at_us, group = at + 1_000 + 3_000 * each, str(1 + rank // 2)
                run.collective(rank, op, at_us, 2_500, size=GRADIENTS, group=group)
    (found,) = diagnose(run.trace(), select=["byte-inflation"]).findings
    assert found.summary.startswith("all_reduces bring 64 MB of gradients a step to every rank")
