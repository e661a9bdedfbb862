"""Logits that are gathered, of which every rank computes the same loss."""

from __future__ import annotations

from itertools import product

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

LOGITS = 200_000_000
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float>(float*)"


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def training(
    behind: tuple[str, ...] = ("elementwise", SOFTMAX),
    *,
    size: int = LOGITS,
    beside: bool = False,
    others: int = 0,
) -> Tiny:
    """Each of four steps gathers for 4 ms what the next kernels work on."""
    run = Tiny(ranks=2)
    for step, rank in product(range(4), range(2)):
        start = 8_000 * step
        launched = {"launch_ns": at(start + 5)}
        run.step(rank, step, start, 8_000)
        run.kernel(rank, start + 10, 988, name="nvjet_tst_64x8", **launched)
        run.collective(rank, "all_gather", start + 1_000, 3_998, size=size, **launched)
        if beside:
            run.kernel(rank, start + 1_500, 3_000, stream=9, **launched)
        now = start + 5_000
        for i, name in enumerate(behind):
            run.kernel(rank, now + 500 * i, 498, name=name, **launched)
        run.kernel(rank, now + 1_000, 998, name="nvjet_tst_64x8", **launched)
        for i in range(others):
            run.collective(rank, "all_gather", now + 2_000 + 300 * i, 298, size=size, **launched)
    return run


def found(run: Tiny) -> list[Finding]:
    return list(diagnose(run.trace(), select=["redundant"]).findings)


def test_a_loss_of_gathered_logits_needs_no_gather() -> None:
    (finding,) = found(training())
    assert finding.summary.startswith(
        "what seems to be logits is gathered, and every rank computes the same"
    )
    assert "vocabulary-parallel cross entropy" in finding.advice
    assert finding.cost_ns == pytest.approx(4 * 4_000_000, rel=0.05)


@pytest.mark.parametrize(
    "run",
    [
        training(("ampere_bf16_s16816gemm_bf16", SOFTMAX)),  # parameters, or features
        training(("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", SOFTMAX)),
        training(("triton_tem_fused_mm_3", SOFTMAX)),
        training(("gemv2T_kernel_val", SOFTMAX)),
        training(("fused_linear_cross_entropy_fwd", SOFTMAX)),
        training(("elementwise",)),  # nothing that has to do with a loss
        training(size=3_000_000),  # metrics, or a queue's keys
        training(beside=True),  # prefetched while something else computes
        training(others=3),  # parameters, one of which ends before a softmax
    ],
)
def test_what_a_product_works_on_first_is_no_logits(run: Tiny) -> None:
    assert not found(run)


@pytest.mark.parametrize(
    "name", ["void at::native::reduce_kernel<ArgMaxOps>", "radixFindKthValues"]
)
def test_nor_does_a_metric_that_every_rank_counts(name: str) -> None:
    assert bool(found(training(("elementwise", name)))) == ("ArgMax" in name)


@pytest.mark.parametrize(
    ("behind", "normed"),
    [
        (("void at::native::CatArrayBatchedCopy<float>", "reduce_kernel<NormTwoOps<float>>"), True),
        (("PowFunctor", "reduce_kernel<sum>"), True),
        (("reduce_kernel<MeanOps>", "reduce_kernel<NormTwoOps<float>>"), False),  # an average's
        (("ampere_bf16_s16816gemm_bf16", "reduce_kernel<NormTwoOps<float>>"), False),
    ],
)
def test_a_norm_of_what_is_gathered_is_that_of_norms(behind: tuple[str, ...], normed: bool) -> None:
    findings = found(training(behind))
    assert [its.summary.split(":")[0] for its in findings] == [
        "what is gathered goes into a norm, of which each rank has its part"
    ] * normed
