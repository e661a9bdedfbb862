"""A GPU that is slower is one that is slower at what no batch makes larger."""

from __future__ import annotations

import pytest

from benchmarks.faults.loop import Loop
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.rules._slow_device import slower_at_updates
from commtrace.synthetic import BASE_NS, Tiny

ADAM = "multi_tensor_apply_kernel<FusedAdam>"


def training(update_us: tuple[float, ...]) -> Measures:
    """Ranks of which the last computes 1.2 times as long, and updates so long each."""
    run, last = Tiny(len(update_us)), len(update_us) - 1
    free = [0.0] * len(update_us)
    for step in range(12):
        launched = {"launch_ns": BASE_NS + 1000 * (100 * step - 2_000)}
        came = [at + (4_800.0 if rank == last else 4_000.0) for rank, at in enumerate(free)]
        met = max(came) + 600
        for rank, update in enumerate(update_us):
            run.step(rank, step, 100.0 * step - 2_010, 90)
            run.kernel(rank, free[rank], came[rank] - free[rank], **launched)
            its = {"size": 1 << 26, **launched}
            run.collective(rank, "all_reduce", came[rank], met - came[rank], **its)
            run.kernel(rank, met, update, name=ADAM, **launched)
            free[rank] = met + update
    return run.trace()


@pytest.mark.parametrize(
    ("update_us", "said"),
    [
        ((500, 500, 500, 600), "its GPU is slower: parameters' updates, which no batch makes "),
        ((500, 500, 500, 500), "hardly any kernels run there"),  # only its batches may be larger
        ((500, 500, 560, 600), "hardly any kernels run there"),  # shards are uneven anyway
    ],
)
def test_updates_tell_a_slow_gpu_from_a_large_batch(
    update_us: tuple[float, ...], said: str
) -> None:
    (finding,) = diagnose(training(update_us), select=["straggler"]).findings
    assert finding.ranks == (3,)
    assert finding.advice.startswith(f"rank 3: {said}")
    assert ("1.20 times" in finding.advice) == ("GPU is slower" in said)
    assert "nvidia-smi" in finding.advice


def test_a_gpu_alone_with_one_other_is_slower_than_nobody_knows_what() -> None:
    assert slower_at_updates(training((500, 600)), [1]) is None
    assert slower_at_updates(training((500, 500, 600)), [2]) == pytest.approx(1.2)
    assert slower_at_updates(training((500, 500, 500, 600)), [2, 3]) is None


@pytest.mark.parametrize("found", [1, 8])
def test_work_that_grows_from_rank_to_rank_is_to_be_split_evenly(
    found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As causal attention's, though only the last rank may be found to save much by itself."""
    monkeypatch.setattr("commtrace.causal.blame.culprits._MOST", found)
    loop = Loop(5, ranks=8, steps=4)
    loop.spread = 0.0
    for _ in range(loop.steps):
        with loop.step():
            for rank in loop.everyone:
                loop.compute(rank, 1_000 + 1_000 * rank)
            loop.together("all_reduce", 1_000_000)
    its = diagnose(loop.run.trace(), select=["straggler"]).findings[0]
    assert "the work grows from one rank to the next" in its.advice
    assert its.cost_ns / loop.steps == pytest.approx(3_500_000, rel=0.02)
