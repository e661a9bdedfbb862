"""Embedding tables whose whole gradients are all_reduced, of which a step uses few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.diagnosis import Finding
from tests.written import COMMUNICATES, COMPUTES, event, found_on_two

STEPS, STEP_US, CALL_US = 4, 10_000, 4_000
WIDTH = 64


def step(
    number: int,
    rows: int,
    looked_up: int,
    dense: str,
    shares: bool,
    reduced: int,
    alike: int,
    named: str,
    lookups: int,
    dtype: str,
) -> list[dict[str, Any]]:
    """Looks up, multiplies, and reduces the gradient, of so many numbers, at the end."""
    at, one = number * STEP_US, 10 * number
    lookup = {"Input Dims": [[rows, WIDTH], [looked_up // 8, 8], []], "Input type": ["float"]}
    product = {"Input Dims": [[8, WIDTH], [WIDTH, rows if shares else 9]]}
    backward = {"Input Dims": [[looked_up, WIDTH], [looked_up], []]}
    reduce = {"Collective name": "allreduce", "dtype": dtype, "Group size": 2}
    sizes = {"In msg nelems": reduced, "Out msg nelems": reduced}
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    group["Process Group Description"] = named
    ops = [("aten::embedding", lookup)] * lookups
    ops += [("aten::mm", product), (dense, backward)]
    events = [event("user_annotation", f"ProfilerStep#{number}", at, STEP_US)]
    for place, (name, shapes) in enumerate(ops):
        start, launch = at + 20 + 100 * place, {"correlation": one + place}
        kernel = {"device": 0, "stream": COMPUTES, **launch}
        runs = "embedding_backward_feature_kernel" if name == dense else "gemm"
        events += [
            event("cpu_op", name, start, 50, **shapes),
            event("cuda_runtime", "cudaLaunchKernel", start + 10, 5, **launch),
            event("kernel", runs, at + 100 + 1500 * place, 1_400, **kernel),
        ]
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for place in range(alike):
        launch, took = {"correlation": one + 9 - place}, CALL_US / alike
        kernel = {"device": 0, "stream": COMMUNICATES, **launch, **reduce, **sizes, **group}
        events += [
            event("cuda_runtime", "cudaLaunchKernel", at + 400 + 10 * place, 5, **launch),
            event("kernel", name, at + 4_700 + place * took, took - 1, **kernel),
        ]
    return events


def found(
    folder: Path,
    rows: int = 100_000,
    looked_up: int = 1_000,
    dense: str = "aten::embedding_dense_backward",
    shares: bool = False,
    reduced: int = 100_000 * WIDTH,
    alike: int = 1,
    group: str = "default_pg",
    lookups: int = 1,
    dtype: str = "Float",
) -> list[Finding]:
    its = rows, looked_up, dense, shares, reduced, alike, group, lookups, dtype
    steps = (step(number, *its) for number in range(STEPS))
    return found_on_two(folder, steps, "byte-inflation")


def test_few_rows_of_a_table_are_used(tmp_path: Path) -> None:
    """2 ranks × 1,000 rows of 100,000: what both get of them is a hundredth of an all_reduce."""
    (finding,) = found(tmp_path)
    assert "100,000 x 64 (25.6 MB), of which 2 ranks use 2,000 rows at most" in finding.summary
    assert finding.cost_ns == pytest.approx(STEPS * CALL_US * 1e3 * 0.99, rel=0.02)
    assert "sparse=True" in finding.advice


def test_of_a_larger_bucket_its_share_counts(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, reduced=200_000 * WIDTH)
    assert finding.cost_ns == pytest.approx(STEPS * CALL_US * 1e3 * 0.99 / 2, rel=0.02)


@pytest.mark.parametrize(("dtype", "part", "told"), [("Half", 1.0, True), ("Double", 0.6, False)])
def test_elements_tell_what_has_room_for_a_table_whatever_their_type(
    tmp_path: Path, dtype: str, part: float, told: bool
) -> None:
    """Of a table in float32: half the bytes hold all of it, and more bytes not all."""
    reduced = round(part * 100_000 * WIDTH)
    assert bool(found(tmp_path, reduced=reduced, dtype=dtype)) == told


@pytest.mark.parametrize(
    ("reduced", "said", "used"),
    [
        (2 * 100_000 * WIDTH, "gradients of 2 embedding tables, each", 2_000),
        (100_000 * WIDTH, "gradient of an embedding table,", 4_000),  # of two micro-batches
        (150_000 * WIDTH, "gradient of an embedding table,", 4_000),  # beside something else
    ],
)
def test_tables_of_one_shape_are_several_if_they_fill_what_is_reduced(
    tmp_path: Path, reduced: int, said: str, used: int
) -> None:
    (finding,) = found(tmp_path, reduced=reduced, lookups=2)
    assert f"{said} 100,000 x 64" in finding.summary
    assert f"2 ranks use {used:,} rows at most" in finding.summary
    share = min(2 * 100_000 if used == 2_000 else 100_000, reduced / WIDTH) * WIDTH / reduced
    assert finding.cost_ns == pytest.approx(STEPS * CALL_US * 1e3 * share, rel=0.05)


@pytest.mark.parametrize(
    "other",
    [
        {"looked_up": 80_000},  # most of them
        {"shares": True},  # the output layer's weight
        {"dense": "aten::embedding_sparse_backward"},
        {"rows": 1_000, "looked_up": 8, "reduced": 64_000},  # a small table
        {"rows": 200_000},  # no bucket holds it
        {"alike": 3},  # nothing tells which of three it is in
        {"group": "TENSOR_MODEL_PARALLEL_GROUP"},  # activations
    ],
)
def test_all_else_is_as_it_should_be(other: dict[str, Any], tmp_path: Path) -> None:
    assert not found(tmp_path, **other)
