"""Communication that waits for a late rank slows what the others compute beside it."""

import pytest

from commtrace.causal.work.beside_waits import slowed_beside_waits_ns
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, KERNELS = 12, ("gemm", "norm", "add") * 3


def computes(run: Tiny, rank: int, start_us: float, each_us: float) -> float:
    for name in KERNELS:
        run.kernel(rank, start_us, each_us, name=name)
        start_us += each_us + 1
    return start_us


def late(beside: float) -> Measures:
    """Rank 1 computes three times as long, forward and backward; an all_reduce ends each.

    The others go backward while the first of these waits, and take ``beside`` times as long.
    """
    run = Tiny(ranks=3)
    for step in range(STEPS):
        start = 7_000.0 * step
        for rank in range(3):
            run.step(rank, step, start, 7_000)
            forward = computes(run, rank, start + 10, 300 if rank == 1 else 100)
            first, last = start + 2_900, start + 6_000
            run.collective(rank, "all_reduce", forward, first - forward, size=1 << 24)
            begin = first + 5 if rank == 1 else forward + 1
            backward = computes(run, rank, begin, 300 if rank == 1 else 100 * beside)
            run.collective(rank, "all_reduce", backward, last - backward, size=1 << 24)
    return run.trace()


@pytest.mark.parametrize("beside", [1.0, 1.6])
def test_what_others_compute_longer_meanwhile_is_told_besides(beside: float) -> None:
    run = late(beside)
    slowed_us = STEPS * len(KERNELS) * 100 * (beside - 1)
    assert slowed_beside_waits_ns(run, (1,)) == pytest.approx(1e3 * slowed_us, rel=0.05)
    (finding,) = diagnose(run, select=["straggler"]).findings
    assert finding.ranks == (1,)
    told = "also slows the others' kernels (1.60 times as long), about 0.54 ms a step"
    assert (told in finding.summary) == (beside > 1)


@pytest.mark.parametrize(
    ("others_us", "kernels", "slowed_us"), [(400, 1, 0), (500, 1, 100), (500, 2, 0)]
)
def test_of_kernels_that_never_run_alone_those_of_the_late_rank_tell(
    others_us: float, kernels: int, slowed_us: float
) -> None:
    """If it runs as many."""
    run = Tiny(ranks=2)
    for step in range(STEPS):
        start = 2_000.0 * step
        for rank in (0, 1):
            came = start + 600 * rank
            run.collective(rank, "all_reduce", came, start + 1_500 - came, size=1 << 20)
            count = 1 if rank else kernels
            for number in range(count):
                took = (400 if rank else others_us) / count
                run.kernel(rank, came + number * took, took)
    assert slowed_beside_waits_ns(run.trace(), (1,)) == STEPS * 1e3 * slowed_us
