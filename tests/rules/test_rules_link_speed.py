"""What below-link-speed tells of several groups of one dimension, each on one host."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny
from tests.edited import edited
from tests.rules.test_rules_slow_groups import MB, job

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


@pytest.mark.parametrize(("pair_us", "fires"), [(100, False), (1_000, True)])
def test_ranks_that_are_fast_in_other_groups_have_their_links(pair_us: float, fires: bool) -> None:
    """As where bridges link pairs of GPUs: what is among four takes another way."""
    pairs = Tiny(4)
    pairs.groups |= {f"tp{rank}": (rank, rank + 1) for rank in (0, 2)}
    for i, rank in product(range(12), range(4)):
        tensor = {"group": f"tp{rank - rank % 2}", "size": 32 * MB}
        pairs.collective(rank, "all_reduce", 4_000 * i, pair_us, **tensor)
        pairs.collective(rank, "all_reduce", 4_000 * i + 1_500, 2_000, size=32 * MB)
    trace = edited(pairs.trace(), "ranks", gpu=GPU)
    assert bool(diagnose(trace, select=["below-link-speed"]).findings) == fires
