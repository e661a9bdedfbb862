"""What a comparison calls things: no two alike, and nothing large left unsaid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commtrace.comparing.compared import Compared, compared
from commtrace.comparing.recorded import Recorded
from commtrace.comparing.tables import CHANGES, COUNTS, WORK
from commtrace.diagnosis import Diagnosis
from commtrace.metrics.run.summary import summary
from commtrace.reports.content import compared_tables, comparison
from commtrace.reports.content.compared_names import work_of
from commtrace.synthetic import Tiny

MS = 1_000_000


@pytest.fixture(scope="module")
def its() -> Compared:
    """Steps of 10 ms, then of 40."""

    def recorded(ms: int) -> Recorded:
        tiny = Tiny(1)
        for step in range(5):
            tiny.step(0, step, 100_000 * step, 1_000 * ms)
            tiny.kernel(0, 100_000 * step + 10, 1_000 * ms - 20 + step)
        run = tiny.trace()
        return Recorded(summary(run, str(ms)), run, Diagnosis())

    return compared([recorded(10)], [recorded(40)])


def row(kind: str, change: int, low: int, **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(column.name for column in CHANGES.columns)
    times = {"base_ns": 0, "candidate_ns": change * MS, "change_ns": change * MS}
    return {**nothing, **times, "kind": kind, "low_ns": low * MS, "high_ns": 99 * MS, **more}


def counted(size: int) -> dict[str, Any]:
    nothing = dict.fromkeys(column.name for column in COUNTS.columns)
    counts = {"base_count": 0.0, "candidate_count": 1.0, "base_ns": 0, "candidate_ns": MS}
    return {**nothing, **counts, "op": "all_reduce", "size_bytes": size}


def test_the_largest_part_is_named_though_it_may_be_chance(its: Compared) -> None:
    changes = [row("transfer", 20, 0, op="all_reduce"), row("compute", 4, 2)]
    said = comparison.why(replace(its, changes=CHANGES.of_dicts(changes)))
    assert said == (
        "Of +30.0 ms per step: +4.00 ms all ranks: compute; +26.0 ms all else, of which "
        "+20.0 ms all_reduce: transfer is not beyond chance."
    )


def test_sizes_that_look_alike_are_told_apart(its: Compared) -> None:
    sizes = (2_099_200, 2_101_248, 8_000_000)
    some = replace(its, operations=COUNTS.of_dicts([counted(size) for size in sizes]))
    (line,) = [line for line in comparison.summary(some) if line.startswith("A step has")]
    for size in ("2,099,200 bytes", "2,101,248 bytes", "8.00 MB"):
        assert f"1 instead of 0 all_reduce, {size}" in line


def test_other_shapes_are_said(its: Compared) -> None:
    work = {"kernel": "aten::mm", "shape": "[[128,4],[]]", "base_shape": "[[64,4],[]]"}
    nothing = dict.fromkeys(column.name for column in WORK.columns)
    times = {"base_count": 1.0, "candidate_count": 1.0, "base_ns": 1, "candidate_ns": 2}
    some = replace(its, kernels=WORK.of_dicts([{**nothing, **times, **work}]))
    assert "Other shapes: aten::mm 64×4 → 128×4." in comparison.summary(some)


def test_kernels_that_are_not_listed_are_counted(its: Compared) -> None:
    nothing = dict.fromkeys(column.name for column in WORK.columns)
    times = {"base_count": 1.0, "candidate_count": 1.0, "base_ns": 1, "candidate_ns": 2}
    table = [{**nothing, **times, "kernel": f"gemm_{number}"} for number in range(5)]
    some = replace(its, kernels=WORK.of_dicts(table))
    (kernels,) = [one for one in compared_tables.sections(some) if one.title.startswith("Kernels")]
    assert len(kernels.cells) == 3
    assert kernels.footer == ("2 more are not shown.",)


def test_a_long_kernel_keeps_its_end() -> None:
    name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    said = work_of({"kernel": name, "shape": None, "base_shape": None})
    assert len(said) == 60
    assert said.startswith("autograd::engine")
    assert said.endswith("AccumulateGrad")
