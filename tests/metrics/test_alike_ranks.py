"""Ranks in groups that behave alike: of runs whose groups can be seen by eye."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commtrace.metrics.run.alike_ranks import alike_ranks
from commtrace.synthetic import Tiny

STEP_US = 1_000
STEPS = 3


def scattered(rank: int) -> float:
    """Between 0 and 1, in no order."""
    return rank * 7919 % 101 / 100


def run(
    ranks: int,
    compute_us: Callable[[int], float],
    *,
    hosts: tuple[str, ...] = ("host",),
    groups: dict[str, tuple[int, ...]] | None = None,
) -> list[dict[str, Any]]:
    """Steps of 1 ms: each rank computes, then an all_reduce takes the rest of the step."""
    tiny = Tiny(ranks, hosts=hosts)
    tiny.groups |= groups or {}
    for rank in range(ranks):
        for step in range(STEPS):
            start, busy = step * STEP_US, round(compute_us(rank))
            tiny.step(rank, step, start, STEP_US)
            tiny.kernel(rank, start, busy)
            tiny.collective(rank, "all_reduce", start + busy, STEP_US - busy, size=1 << 20)
            for name, members in (groups or {}).items():
                if rank in members:
                    tiny.collective(rank, "all_reduce", start + 990, 5, size=4, group=name)
    return alike_ranks(tiny.trace()).dicts()


def named(found: list[dict[str, Any]]) -> list[tuple[int, str | None, str | None]]:
    return [(row["count"], row["place"], row["differs_in"]) for row in found]


@pytest.mark.parametrize("noise_us", [0, 10, 200])
def test_ranks_that_differ_by_little_or_evenly_are_one_group(noise_us: float) -> None:
    found = run(64, lambda rank: 500 + noise_us * scattered(rank))
    assert named(found) == [(64, None, None)]
    assert found[0]["ranks"] == ",".join(map(str, range(64)))
    assert found[0]["difference_ns"] == 0


def test_a_slow_host_is_a_group() -> None:
    hosts = tuple("abcdefgh")
    found = run(64, lambda r: (560 if r // 8 == 3 else 500) + 5 * scattered(r), hosts=hosts)
    assert [row["count"] for row in found] == [56, 8]
    slow = found[1]
    assert slow["place"] == "host d"
    assert slow["ranks"] == "24,25,26,27,28,29,30,31"
    assert slow["compute_ns"] - found[0]["compute_ns"] == slow["difference_ns"] > 55_000
    assert slow["differs_in"] == "compute"
    assert slow["exposed_communication_ns"] < found[0]["exposed_communication_ns"]


def test_a_heavier_stage_is_a_group_where_its_ranks_and_others_overlap() -> None:
    pipelines = {f"mesh_pp:{i}": tuple(range(i, 64, 16)) for i in range(16)}
    found = run(64, lambda r: (580 if r // 16 == 2 else 500) + 100 * scattered(r), groups=pipelines)
    assert named(found) == [(48, "pp 0–1, 3", None), (16, "pp 2", "compute")]


def test_one_odd_rank_is_a_group_of_its_own() -> None:
    tensors = {f"mesh_tp:{i}": tuple(range(8 * i, 8 * i + 8)) for i in range(8)}
    hosts = tuple("abcd")
    found = run(64, lambda r: 300 if r == 37 else 500 + scattered(r), hosts=hosts, groups=tensors)
    assert named(found) == [(63, None, None), (1, "host c, tp 5", "compute")]
    assert found[1]["ranks"] == "37"
    assert found[1]["difference_ns"] == pytest.approx(-200_000, abs=1_000)


def test_a_slow_host_and_an_odd_rank_on_another_are_two_groups() -> None:
    def busy(rank: int) -> float:
        return {3: 600, 9: 800}.get(rank if rank == 9 else rank // 8, 500) + 5 * scattered(rank)

    found = run(64, busy, hosts=tuple("abcdefgh"))
    assert named(found) == [(55, None, None), (1, "host b", "compute"), (8, "host d", "compute")]


def test_without_known_compute_no_rank_is_in_a_group() -> None:
    tiny = Tiny(32, backend="gloo")
    assert not len(alike_ranks(tiny.trace()))
