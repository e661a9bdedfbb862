"""Whole parameters or gradients that a program gathers beside what FSDP gathers."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

UNITS_MB = (4, 4, 2)
TENSORS_MB = (3, 1, 3, 1, 1, 1)


def found(
    gathered_mb: tuple[float, ...],
    *,
    micro_batches: int = 1,
    units_mb: tuple[float, ...] = UNITS_MB,
    kernel: str | None = None,
    group: str = "0",
) -> list[Finding]:
    """FSDP's gathers and reductions of 10 MB in three units, then all_gathers of other sizes.

    On each rank one kernel of a name, too.
    """
    run, now = Tiny(2, backend="gloo"), 0.0
    run.groups[group] = (0, 1)
    call = {"asynchronous": 0, "thread": 1, "group": group}
    for step in range(4):
        begin = now
        its = [("all_gather", mb) for mb in units_mb] + [("reduce_scatter", mb) for mb in UNITS_MB]
        for op, mb in [*its * micro_batches, *(("all_gather", mb) for mb in gathered_mb)]:
            for rank in range(2):
                run.op(rank, now, 500)
                run.collective(rank, op, now + 510, 1000, size=round(mb * 1e6), **call)
                run.gap(rank, now + 505, 1005)
            now += 1520
        for rank in range(2):
            run.step(rank, step, begin, now - begin)
            if kernel:
                run.kernel(rank, begin + 10, 20, name=kernel)
    return list(diagnose(run.trace(), select=["redundant"]).findings)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_all_parameters_one_by_one(micro_batches: int) -> None:
    """Or their gradients, which are as many however often they are reduced."""
    (finding,) = found(TENSORS_MB, micro_batches=micro_batches)
    assert "gathered whole, one by one, beside what FSDP gathers" in finding.summary
    assert "24 operations too many" in finding.summary
    assert finding.cost_ns == pytest.approx(24 * 1e6, rel=0.05)


def test_an_engine_that_generates_is_handed_whole_parameters() -> None:
    assert found(TENSORS_MB, kernel="ampere_bf16_gemm")
    assert not found(TENSORS_MB, kernel="void vllm::paged_attention_v2_kernel<float>")


def test_what_tensor_parallelism_gathers_and_scatters_is_a_sequence() -> None:
    assert found(TENSORS_MB, group="dp")
    assert not found(TENSORS_MB, group="tp")


@pytest.mark.parametrize(
    "gathered_mb",
    [
        (3, 1, 3, 1),  # not all: a sequence, or experts
        (4, 4, 2),  # units of FSDP's own, for the backward pass
        (),
    ],
)
def test_all_else_is_as_it_should_be(gathered_mb: tuple[float, ...]) -> None:
    assert not found(gathered_mb)


@pytest.mark.parametrize(("dtype", "told"), [("float32", True), ("bfloat16", False)])
def test_half_of_the_gradients_in_the_type_that_they_are_reduced_in(dtype: str, told: bool) -> None:
    """Units are gathered in bfloat16; what else is gathered in float32 is no parameter."""
    run, now = Tiny(2, backend="gloo"), 0.0
    call = {"asynchronous": 0, "thread": 1}
    for step in range(4):
        begin = now
        its = [("all_gather", mb / 2, "bfloat16") for mb in UNITS_MB]
        its += [("reduce_scatter", mb, "float32") for mb in UNITS_MB]
        its += [("all_gather", mb if told else mb / 2, dtype) for mb in (3, 3)]
        for op, mb, kind in its:
            for rank in range(2):
                run.op(rank, now, 500)
                run.collective(rank, op, now + 510, 1000, size=round(mb * 1e6), dtype=kind, **call)
                run.gap(rank, now + 505, 1005)
            now += 1520
        for rank in range(2):
            run.step(rank, step, begin, now - begin)
    findings = diagnose(run.trace(), select=["redundant"]).findings
    assert bool(findings) == told


@pytest.mark.parametrize(
    ("units_mb", "gathered_mb"),
    [
        ((44, 44, 22), ()),  # a frozen model with adapters: the gradients are the adapters'
        ((), (10,)),  # an optimizer that is sharded: buckets of gradients, all parameters at once
    ],
)
def test_what_sharding_needs_is_not_gathered_beside_it(
    units_mb: tuple[float, ...], gathered_mb: tuple[float, ...]
) -> None:
    assert not found(gathered_mb, units_mb=units_mb)
