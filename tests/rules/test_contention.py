"""Kernels are compared with those of their own shape, and believed where most agree."""

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny


def found(run: Measures) -> tuple[Finding, ...]:
    return diagnose(run, select=["contention"]).findings


def layer(run: Tiny, rank: int, start_us: float, kernels: dict[str, float]) -> None:
    """Kernels, one behind the other, which take so long."""
    for name, duration_us in kernels.items():
        run.kernel(rank, start_us, duration_us, name=name.rstrip("'"))
        start_us += duration_us + 1


def of_layers(
    alone: dict[str, float], beside: dict[str, float], ranks: int = 1, fast_ranks: int = 0
) -> Measures:
    """In each step every layer runs twice alone, and twice beside an all_reduce."""
    run = Tiny(ranks=ranks)
    for step in range(12):
        start = 10_000.0 * step
        for rank in range(ranks):
            run.step(rank, step, start, 10_000)
            its = alone if rank < fast_ranks else beside
            for place, kernels in enumerate((alone, alone, its, its)):
                layer(run, rank, start + 2_000 * place, kernels)
            run.collective(rank, "all_reduce", start + 3_990, 4_000, size=1 << 24)
    return run.trace()


def test_one_name_between_other_kernels_is_of_another_shape() -> None:
    """Forward's kernels are alone, backward's beside the gradients: who compares them errs."""
    run = of_layers(
        {"gemm": 300, "norm": 40, "add": 20},
        {"gemm": 600, "softmax": 40, "copy": 20},
    )
    assert not found(run)


def test_shapes_of_one_name_are_compared_one_by_one() -> None:
    shapes = {"gemm": 300, "norm": 40, "gemm'": 120, "add": 20, "gemm''": 700, "copy": 30}
    run = of_layers(shapes, {name: 1.3 * time for name, time in shapes.items()})
    (finding,) = found(run)
    assert "1.30 times as long" in finding.summary
    assert finding.confidence == "medium"
    lost_us = 12 * 2 * 0.3 * sum(shapes.values())
    assert finding.cost_ns == pytest.approx(1e3 * lost_us, rel=0.05)


def test_what_else_runs_beside_communication_counts_as_much() -> None:
    """Of a layer's kernels one differs from layer to layer: it is never compared."""
    run = Tiny()
    usual = {"norm": 40, "mul": 60, "gemm": 300, "relu": 200, "add": 20, "copy": 30}
    for step in range(12):
        start = 10_000.0 * step
        run.step(0, step, start, 10_000)
        for place, slower in enumerate((1, 1, 1.5, 1.5)):
            times = usual | {f"own {place}": 150}
            layer(run, 0, start + 2_000 * place, {n: slower * time for n, time in times.items()})
        run.collective(0, "all_reduce", start + 3_990, 4_000, size=1 << 24)
    (finding,) = found(run.trace())
    assert finding.cost_ns == pytest.approx(1e3 * 12 * 2 * 0.5 * 800, rel=0.05)


def test_a_few_slow_kernels_beside_many_that_are_not_prove_nothing() -> None:
    usual = {"gemm": 900, "norm": 300, "add": 60, "copy": 50}
    assert not found(of_layers(usual, usual | {"norm": 800}))


@pytest.mark.parametrize(("fast_ranks", "fires"), [(1, True), (3, False)])
def test_what_few_of_many_gpus_do_is_no_contention(fast_ranks: int, fires: bool) -> None:
    usual = {"gemm": 900, "norm": 100, "add": 60}
    slow = {name: 1.4 * time for name, time in usual.items()}
    assert bool(found(of_layers(usual, slow, ranks=4, fast_ranks=fast_ranks))) == fires


def test_a_single_kind_is_told_with_low_confidence() -> None:
    (finding,) = found(of_layers({"gemm": 900}, {"gemm": 1300}))
    assert finding.confidence == "low"
