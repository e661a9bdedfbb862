"""all_gathers of masters that are of more precision than what becomes of them."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEPS, STEP_US = 4, 20_000
ELEMENTS = 1 << 21


def found(
    reduced: str = "bfloat16",
    gathered: str = "float32",
    behind: str = "aten::copy_",
    elements: int = ELEMENTS,
) -> tuple[Finding, ...]:
    """In each step a reduce_scatter, an all_gather that takes half of it, and an operator."""
    run = Tiny(2, backend="gloo")
    size = {"bfloat16": 2, "float32": 4}
    for step in range(STEPS):
        at = step * STEP_US
        for rank in range(2):
            run.step(rank, step, at, STEP_US)
            for op, dtype, count, start in (
                ("reduce_scatter", reduced, elements, at + 1_000),
                ("all_gather", gathered, ELEMENTS, at + 8_000),
            ):
                call = {"asynchronous": 0, "launch_ns": BASE_NS + 1_000 * start, "thread": 1}
                its = {"size": size[dtype] * count, "dtype": dtype, **call}
                run.collective(rank, op, start + 50, 5_000, **its)
                run.gap(rank, start, 5_050)
            run.op(rank, at + 13_100, 150, name=behind)
            run.op(rank, at + 13_300, 6_000)
    return diagnose(run.trace(), select=["full-precision-payload"]).findings


def test_masters_can_be_converted_before_they_are_gathered() -> None:
    (its,) = found()
    assert "of float32, which is copied at once" in its.summary
    assert (its.confidence, its.ranks) == ("low", ())
    assert "before they are gathered" in its.advice


@pytest.mark.parametrize(
    "otherwise",
    [
        {"reduced": "float32"},
        {"gathered": "bfloat16"},
        {"behind": "aten::mm"},
        {"elements": ELEMENTS // 2},
    ],
)
def test_what_may_be_needed_in_full_is_no_waste(otherwise: dict[str, str | int]) -> None:
    assert not found(**otherwise)  # type: ignore[arg-type]
