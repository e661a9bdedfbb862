"""all_gathers whose parts are summed at once."""

from __future__ import annotations

import json

import numpy as np
import pytest

from commtrace.measures import Measures
from commtrace.metrics.run.first_operators import FirstOperators
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.table import Coded

STEPS, STEP_US = 4, 10_000


def gathered(*behind: str, ranks: int = 4) -> Measures:
    """In each step an all_gather, which takes half of it, and then operators of these names."""
    run = Tiny(ranks, backend="gloo")
    for step in range(STEPS):
        at = step * STEP_US
        for rank in range(ranks):
            run.step(rank, step, at, STEP_US)
            run.op(rank, at, 2_000)
            launch_ns = BASE_NS + round((at + 2_000) * 1e3)
            call = {"asynchronous": 0, "launch_ns": launch_ns, "thread": 1}
            run.collective(rank, "all_gather", at + 2_050, 5_000, size=1 << 24, **call)
            run.gap(rank, at + 2_000, 5_050)
            for number, name in enumerate(behind):
                run.op(rank, at + 7_100 + 200 * number, 150, name=name)
    return run.trace()


@pytest.mark.parametrize(
    ("behind", "summing_ms"),
    [
        (("aten::stack", "aten::sum", "aten::mm"), 0.3),
        (("aten::view", "aten::mean", "aten::mm"), 0.15),
        (("aten::add", "aten::add", "aten::add", "aten::mm"), 0.3),
    ],
)
def test_parts_that_are_summed_need_no_gathering(
    behind: tuple[str, ...], summing_ms: float
) -> None:
    """Four ranks send three times their part, where an all_reduce sends 1.5 times as much."""
    (its,) = diagnose(gathered(*behind), select=["byte-inflation"]).findings
    assert its.ranks == ()
    assert "2x the bytes of an all_reduce" in its.summary
    assert its.cost_ns == pytest.approx(STEPS * (2.5 + summing_ms) * 1e6, rel=0.03)


@pytest.mark.parametrize(
    "behind", [("aten::cat", "aten::mm", "aten::sum"), ("aten::add", "aten::mm"), ()]
)
def test_parts_that_are_used_are_no_waste(behind: tuple[str, ...]) -> None:
    assert not diagnose(gathered(*behind), select=["byte-inflation"]).findings


def test_of_two_ranks_an_all_reduce_moves_as_much_but_spares_summing() -> None:
    run = gathered("aten::stack", "aten::sum", ranks=2)
    (its,) = diagnose(run, select=["byte-inflation"]).findings
    assert "which sums them in 0.3 ms: an all_reduce does both" in its.summary
    assert its.cost_ns == pytest.approx((STEPS - 1) * 0.3e6, rel=0.05)  # the last holds up nobody


@pytest.mark.parametrize(
    ("shape", "needless"),
    [([4, 1 << 20], True), ([1 << 22], False), ([1 << 21], True)],
)
def test_what_is_summed_as_one_long_row_is_no_sum_of_parts(
    shape: list[int], needless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a vector's entries are, of which each rank has computed its own: of 2 to the 22."""
    names, shapes, types = (
        Coded.of([its]) for its in ("aten::sum", json.dumps([shape, []]), '["float", ""]')
    )
    one = np.ones(1, np.int64)
    its = FirstOperators(names, shapes, types, np.zeros(1, np.bool_), one, one)
    monkeypatch.setattr("commtrace.metrics.run.used_gathers.first_operators", lambda _: its)
    run = gathered("aten::sum", "aten::mm")
    assert bool(diagnose(run, select=["byte-inflation"]).findings) == needless
