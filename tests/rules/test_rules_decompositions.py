"""Decompositions of an all_reduce: what is found, how the excess is split, what is not."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.reader import read
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

DECOMPOSED, INFLATED = "decomposed-all-reduce", "byte-inflation"
GB = 1_000_000_000


def found(trace: Measures, rule: str = DECOMPOSED) -> list[Finding]:
    return list(diagnose(trace, select=[rule]).findings)


def value(finding: Finding, name: str) -> float:
    (one,) = (e.value for e in finding.evidence if e.name.startswith(name))
    return one


def factors(finding: Finding) -> dict[str, float]:
    told = {e.name: e.value for e in finding.evidence}
    return {name[8:]: v for name, v in told.items() if name.startswith("factor: ")}


def puzzle(
    *,
    ranks: int = 16,
    once_us: float = 4700,
    first_us: float = 40_200,
    second_us: float = 40_275,
    gap_us: float = 25,
    inflated: bool = True,
    kernel: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    repeats: int = 1,
) -> Measures:
    """The published puzzle: an all_reduce of 1 GB, then a reduce_scatter and an all_gather."""
    run = Tiny(ranks)
    size = GB * ranks if inflated else GB
    for step in range(repeats):
        start = step * 200_000
        for rank in range(ranks):
            run.collective(rank, "all_reduce", start, once_us, size=GB, name=kernel)
            run.collective(rank, "reduce_scatter", start + 10_000, first_us, size=size)
            after = start + 10_000 + first_us + gap_us
            run.collective(rank, "all_gather", after, second_us, size=size)
    return run.trace()


def test_the_puzzle_is_a_matter_of_bytes() -> None:
    (finding,) = found(puzzle())
    split = factors(finding)
    assert value(finding, "ratio") == pytest.approx(80.5 / 4.7, rel=0.01)
    assert split["bytes"] == 16
    assert split["unexplained"] == pytest.approx(80.5 / 4.7 / 16, rel=0.01)
    assert split["launch gap"] == pytest.approx(1 + 25 / 80_500, abs=1e-5)
    assert prod(split.values()) == pytest.approx(value(finding, "ratio"))
    assert "17.1x" in finding.summary
    assert "16x bytes" in finding.summary
    assert any("launch gap" in reason and "0.033 %" in reason for reason in finding.ruled_out)
    assert any("lost pipelining" in reason for reason in finding.ruled_out)
    assert "cold start" in finding.advice, "one iteration cannot show it"
    assert finding.confidence == "low"


def test_beside_it_the_bytes_are_a_finding_of_their_own() -> None:
    (finding,) = found(puzzle(), INFLATED)
    assert value(finding, "bytes moved by") == 16
    assert finding.cost_ns == pytest.approx(80.475e6 * 15 / 16, rel=0.001)
    assert "62.5 MB" in finding.advice


def test_on_a_tree_the_rest_is_the_tree_against_the_ring() -> None:
    tree = puzzle(
        once_us=2200,
        first_us=22_000,
        second_us=22_075,
        kernel="ncclDevKernel_AllReduce_Sum_f32_TREE_LL",
    )
    (finding,) = found(tree)
    assert value(finding, "ratio") == pytest.approx(44.1 / 2.2, rel=0.01)
    assert factors(finding)["unexplained (the all_reduce ran on a tree)"] == pytest.approx(
        44.1 / 2.2 / 16, rel=0.01
    )


def test_with_the_bytes_matched_it_costs_a_launch_and_nobody_says_a_word() -> None:
    matched = puzzle(first_us=2350, second_us=2350, inflated=False)
    assert not found(matched)
    assert not found(matched, INFLATED)


def test_repeated_it_is_one_finding_and_certain() -> None:
    (finding,) = found(puzzle(repeats=12))
    assert finding.confidence == "high"
    assert finding.cost_ns == pytest.approx(12 * (80.5 - 4.7) * 1e6, rel=0.01)
    assert any("cold start" in reason for reason in finding.ruled_out)


@pytest.mark.parametrize(("slow", "confidence"), [(1, "high"), (2, "medium"), (5, None)])
def test_steps_are_compared_one_by_one(slow: int, confidence: str | None) -> None:
    """In ``slow`` of 10 steps the all_reduce beside the pair, of 0.1 ms, took 1 ms."""
    run = Tiny(2)
    for step in range(10):
        once = 1000 if step < slow else 100
        for rank in (0, 1):
            run.collective(rank, "all_reduce", 5000 * step, once, size=1 << 20)
            run.collective(rank, "reduce", 5000 * step + 2000, 100, size=1 << 20, root=0)
            run.collective(rank, "broadcast", 5000 * step + 2101, 100, size=1 << 20, root=0)
    findings = found(run.trace())
    assert [finding.confidence for finding in findings] == ([confidence] if confidence else [])


def reduce_broadcast(n: int = 4, *, root: int | None = 0, other: int | None = 0) -> Tiny:
    run = Tiny(n)
    once = 1000
    half = once / (2 * (n - 1) / n)
    for step in range(12):
        start = step * 10_000
        for rank in range(n):
            run.collective(rank, "all_reduce", start, once, size=4_000_000)
            run.collective(rank, "reduce", start + 2000, half, size=4_000_000, root=root)
            run.collective(rank, "broadcast", start + 2000 + half, half, size=4_000_000, root=other)
    return run


@pytest.mark.parametrize("root", [0, None])
def test_reduce_and_broadcast_lose_the_pipelining(root: int | None) -> None:
    (finding,) = found(reduce_broadcast(root=root, other=root).trace())
    split = factors(finding)
    assert split["lost pipelining"] == pytest.approx(4 / 3)
    assert split["unexplained"] == pytest.approx(1, abs=0.01)


def test_another_root_is_another_tensor() -> None:
    assert not found(reduce_broadcast(root=0, other=1).trace())


@pytest.mark.parametrize(("rank", "fires"), [(0, False), (1, True)])
def test_what_the_root_does_with_the_sum_counts_and_nobody_elses_work(
    rank: int, fires: bool
) -> None:
    run = reduce_broadcast()
    for row in [one for one in run.rows["collectives"] if one["op"] == "broadcast"]:
        row["start_ns"] += 200_000
        row["launch_ns"] += 200_000
    for step in range(12):
        run.kernel(rank, step * 10_000 + 2000 + 1000 / 1.5 + 50, 20, name="sgd")
    assert bool(found(run.trace())) == fires


def test_without_an_all_reduce_beside_it_a_ring_is_what_is_expected() -> None:
    run = reduce_broadcast(2)
    run.rows["collectives"] = [one for one in run.rows["collectives"] if one["op"] != "all_reduce"]
    (finding,) = found(run.trace())
    assert value(finding, "ratio") == pytest.approx(2, rel=0.01)
    assert finding.confidence == "low"


def test_all_reduces_of_other_sizes_tell_by_the_model() -> None:
    run = Tiny(4)
    for step, size in enumerate([1, 2, 4, 8, 16] * 3):
        for rank in range(4):
            run.collective(rank, "all_reduce", step * 10_000, 20 + 100 * size, size=size * 2**20)
            run.collective(rank, "reduce_scatter", step * 10_000 + 3000, 900, size=6 * 2**20)
            run.collective(rank, "all_gather", step * 10_000 + 3900, 900, size=6 * 2**20)
    (finding,) = found(run.trace())
    assert value(finding, "all_reduce, fitted") == pytest.approx(0.62, rel=0.02)
    assert finding.confidence == "medium"
    assert diagnose(run.trace(), select=[INFLATED]).skipped, "no size beside it to compare with"


def test_gloo_runs_reduce_scatter_as_an_all_reduce() -> None:
    run = Tiny(4, backend="gloo")
    for step in range(12):
        for rank in range(4):
            start = step * 10_000
            run.collective(rank, "all_reduce", start, 1000, size=4_000_000)
            run.collective(
                rank, "reduce_scatter", start + 2000, 1000, size=4_000_000, executed="all_reduce"
            )
            run.op(rank, start + 3010, 5, name="aten::copy_")
            run.collective(rank, "all_gather", start + 3020, 500, size=4_000_000)
    (finding,) = found(run.trace())
    assert factors(finding)["reduce_scatter ran as all_reduce"] == 1.5
    assert factors(finding)["unexplained"] == pytest.approx(1)


def fsdp(layers: int = 3, steps: int = 4) -> Measures:
    """Parameters gathered in forward and, one layer ahead, in backward; gradients scattered."""
    run = Tiny(2)
    clock = 0.0
    for _ in range(steps):
        calls = [("all_gather", 30)] * layers
        for layer in range(layers):
            # the next layer's parameters are asked for right after this one's gradients
            calls += [("reduce_scatter", 31)] + [("all_gather", 30)] * (layer < layers - 1)
        for op, stream in calls:
            for rank in range(2):
                run.collective(rank, op, clock, 100, size=1 << 20, stream=stream)
            clock += 100
        for rank in range(2):
            run.kernel(rank, clock, 50, name="adam")
        clock += 100
    return run.trace()


@pytest.mark.parametrize("layers", [1, 2, 3, 8])
def test_sharded_training_is_no_decomposition(layers: int) -> None:
    assert not found(fsdp(layers))


def test_normalising_shards_between_is_sequence_parallelism() -> None:
    run = Tiny(2)
    for layer in range(12):
        for rank in range(2):
            start = layer * 1000
            run.collective(rank, "all_gather", start, 200, size=1 << 20)
            run.kernel(rank, start + 200, 300)
            run.collective(rank, "reduce_scatter", start + 500, 200, size=1 << 20)
            run.kernel(rank, start + 710, 10, name="layer_norm")
    assert not found(run.trace())


def test_on_two_streams_and_beside_unrelated_compute_it_is_still_one() -> None:
    run = Tiny(2)
    for step in range(12):
        start = step * 2000
        for rank in range(2):
            run.collective(rank, "all_reduce", start, 200, size=1 << 20)
            run.collective(rank, "reduce_scatter", start + 500, 200, size=1 << 20, stream=30)
            run.kernel(rank, start + 510, 400)  # begins before there is a shard to work on
            run.collective(rank, "all_gather", start + 710, 200, size=1 << 20, stream=31)
    (finding,) = found(run.trace())
    assert finding.streams == (30, 31)


@pytest.mark.parametrize(("work", "fires"), [("aten::div_", True), ("aten::addcdiv_", False)])
def test_a_root_that_averages_between_does_no_more_than_an_all_reduce(
    work: str, fires: bool
) -> None:
    run = Tiny(2, backend="gloo")
    for step in range(12):
        for rank in range(2):
            run.step(rank, step, step * 10_000, 10_000)
        for tensor, size in enumerate([1 << 10, 1 << 18] * 2):
            start = step * 10_000 + 2_000 * tensor
            for rank in range(2):
                run.collective(rank, "reduce", start, 400, size=size, root=0)
                run.collective(rank, "broadcast", start + 450, 400, size=size, root=0)
            run.op(0, start + 410, 20, name=work)
    findings = found(run.trace())
    assert len(findings) == (2 if fires else 0)  # one for each size
    for finding in findings:
        assert "; 4 tensors go that way in each step: flatten them" in finding.advice


@pytest.mark.parametrize(("functor", "fires"), [("BUnaryFunctor", True), ("BinaryFunctor", False)])
def test_so_does_a_kernel_that_scales_by_a_number(functor: str, fires: bool) -> None:
    name = f"vectorized_elementwise_kernel<4, at::native::{functor}<float, MulFunctor<float>>>"
    run = Tiny(2)
    for step in range(12):
        start = step * 1000
        for rank in range(2):
            run.collective(rank, "reduce", start, 200, size=1 << 20, root=0)
            run.kernel(rank, start + 210, 10, name=name)
            run.collective(rank, "broadcast", start + 230, 200, size=1 << 20, root=0)
    assert bool(found(run.trace())) == fires


def test_a_sum_across_nodes_between_the_two_uses_the_shards() -> None:
    run = Tiny(4)
    run.groups |= {"node": (0, 1), "across": (0, 2)}
    for step in range(12):
        for rank in (0, 1):
            start = step * 1000
            run.collective(rank, "reduce_scatter", start, 200, size=1 << 20, group="node")
            if rank == 0:
                run.collective(rank, "all_reduce", start + 200, 100, size=1 << 19, group="across")
            run.collective(rank, "all_gather", start + 320, 400, size=1 << 20, group="node")
    assert not found(run.trace())


def test_without_sizes_it_cannot_look() -> None:
    run = Tiny(2)
    for rank in range(2):
        run.collective(rank, "reduce", 0, 100)
        run.collective(rank, "broadcast", 100, 100)
    for rule in (DECOMPOSED, INFLATED):
        assert "record_shapes" in diagnose(run.trace(), select=[rule]).skipped[rule]


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(2, 6),
    once=st.integers(200, 2000),
    first=st.integers(1000, 50_000),
    second=st.integers(1000, 50_000),
    gap=st.integers(0, 500),
    late=st.integers(0, 300),
)
def test_the_factors_multiply_to_the_ratio(
    ranks: int, once: int, first: int, second: int, gap: int, late: int
) -> None:
    run = Tiny(ranks)
    for rank in range(ranks):
        run.collective(rank, "all_reduce", 0, once, size=1 << 20)
        run.collective(rank, "reduce_scatter", 5000, first, size=ranks << 20)
        behind = late if rank == 0 else 0
        start = 5000 + first + gap + behind
        run.collective(rank, "all_gather", start, second - behind, size=ranks << 20)
    for finding in found(run.trace()):
        assert prod(factors(finding).values()) == pytest.approx(value(finding, "ratio"))
        assert finding.cost_ns <= finding.end_ns - finding.start_ns


def test_the_recordings(recorded: Path) -> None:
    (scattered,) = found(read([recorded / "decomposed_all_reduce" / "gloo-4"]))
    assert scattered.confidence == "high", "longer in 9 of 10 steps"
    assert factors(scattered)["bytes"] == 1
    assert factors(scattered)["reduce_scatter ran as all_reduce"] == 1.5
    inflated = read([recorded / "decomposed_all_reduce" / "gloo-4-full-output"])
    scattered, reduced = found(inflated)
    assert factors(scattered)["bytes"] == 4
    assert factors(reduced)["lost pipelining"] == pytest.approx(4 / 3)
    said = [scattered.confidence, reduced.confidence]
    assert said == ["high", "low"], "from their calls on: longer in 10 and in 8 of 10 steps"
    assert value(found(inflated, INFLATED)[0], "bytes moved by") == 4


@pytest.mark.parametrize(
    "name", ["ddp_training", "all_gather", "reduce_scatter", "reduce", "broadcast", "all_reduce"]
)
def test_recordings_without(recorded: Path, name: str) -> None:
    trace = read([recorded / name / "gloo-4"])
    assert not found(trace)
    assert not found(trace, INFLATED)


@pytest.mark.parametrize(("asynchronous", "copied_us"), [(0, 300), (1, 0), (None, 0)])
def test_what_gloo_copies_before_it_starts_is_part_of_a_synchronous_call(
    asynchronous: int | None, copied_us: int
) -> None:
    run = Tiny(2, backend="gloo")
    sync = {"asynchronous": asynchronous}
    for step in range(10):
        for rank in range(2):
            start = step * 3000
            called = {"launch_ns": BASE_NS + 1000 * (start + 400 - 300)}
            run.collective(rank, "reduce_scatter", start + 400, 500, size=1 << 20, **sync, **called)
            run.collective(rank, "all_gather", start + 900, 500, size=1 << 20, **sync)
            run.collective(rank, "all_reduce", start + 1500, 500, size=1 << 20, **sync)
    (finding,) = found(run.trace())
    beside = 5 if asynchronous == 0 else 0
    assert finding.cost_ns == 10 * 1000 * (1000 + copied_us - 500 - beside)


def test_an_empty_tensor_is_not_inflated() -> None:
    run = Tiny(2)
    for rank in range(2):
        run.collective(rank, "reduce_scatter", 0, 500, in_bytes=0, out_bytes=0)
        run.collective(rank, "all_gather", 510, 500, in_bytes=0, out_bytes=0)
    assert not found(run.trace(), INFLATED)
    found(run.trace())
