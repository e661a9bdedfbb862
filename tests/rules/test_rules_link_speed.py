"""What below-link-speed tells of several groups of one dimension, each on one host."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from tests.edited import edited
from tests.rules.test_rules_slow_groups import job

GPU = "NVIDIA H100 80GB HBM3"
USUAL_US = 32e6 * 0.75 / 370e3 + 8.4 + 3 * 3.4  # by its NVLinks, and NCCL's latency of four ranks


def run(took_us: Mapping[int, float]) -> Measures:
    """Of four tensor-parallel groups of four ranks, two on each host, some take so long."""
    return edited(job(took_us), "ranks", gpu=GPU)


def found(took_us: Mapping[int, float]) -> Finding:
    (its,) = diagnose(run(took_us), select=["below-link-speed"]).findings
    return its


def test_those_of_one_host_are_named_with_it() -> None:
    its = found({2: 300, 3: 300})
    assert its.ranks == tuple(range(8, 16))
    assert its.summary.startswith(
        "24 all_gathers of 32 MB among ranks 8–15, all of host b, reached 80 GB/s bus bandwidth"
    )
    assert its.summary.endswith("; others like them reached 240 GB/s")


def test_groups_that_are_slow_together_are_replayed_together() -> None:
    """All wait for the slowest behind each: faster ones alone would save nothing."""
    its = found(dict.fromkeys(range(4), 300))
    assert its.ranks == ()
    assert its.cost_ns == pytest.approx(12 * 1e3 * (300 - USUAL_US), rel=0.05)


def test_of_usual_ones_nothing_is_said() -> None:
    assert not diagnose(run({}), select=["below-link-speed"]).findings
