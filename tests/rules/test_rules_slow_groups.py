"""Of sibling groups of more than two ranks, slow-link names the one that is slower."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny
from tests.edited import edited

SIZE = 4
MB = 1_000_000
HOSTS = ("a", "a", "b", "b")  # two tensor-parallel groups on each


def job(
    took_us: Mapping[int, float],
    *,
    count: int = 4,
    across_us: Mapping[int, float] | None = None,
    op: str = "all_gather",
    hosts: tuple[str, ...] = HOSTS,
    of_all: bool = False,
) -> Measures:
    """Twelve times an operation in each tp group, then one in each dp group across them.

    Before all that one ``of_all`` ranks, which has no siblings.
    """
    run = Tiny(SIZE * count, hosts=hosts)
    tensors = {f"mesh_tp:{i}": range(SIZE * i, SIZE * i + SIZE) for i in range(count)}
    data = {f"mesh_dp:{i}": range(i, SIZE * count, SIZE) for i in range(SIZE)}
    run.groups = {name: tuple(ranks) for name, ranks in (tensors | data).items()}
    if of_all:
        run.groups["mesh_a"] = tuple(range(SIZE * count))
    for step in range(12):
        at = step * 1000.0
        for rank in range(SIZE * count if of_all else 0):
            run.collective(rank, "all_reduce", at - 200, 100, size=32 * MB, group="mesh_a")
        for i in range(count):
            for rank in tensors[f"mesh_tp:{i}"]:
                its = {"size": 32 * MB, "group": f"mesh_tp:{i}"}
                run.collective(rank, op, at, took_us.get(i, 100), **its)
        come = {rank: at + took_us.get(rank // SIZE, 100) for rank in range(SIZE * count)}
        for i in range(SIZE):
            ranks = data[f"mesh_dp:{i}"]
            took = (across_us or {}).get(i, 100)
            end = max(come[rank] for rank in ranks) + took
            for rank in ranks:
                its = {"size": 16 * MB, "group": f"mesh_dp:{i}"}
                run.collective(rank, "all_reduce", come[rank], end - come[rank], **its)
    return run.trace()


def found(run: Measures) -> list[Finding]:
    return list(diagnose(run, select=["slow-link"]).findings)


def test_the_slow_one_is_named_by_its_ranks_and_costs_what_it_delays() -> None:
    (its,) = found(job({2: 300}))
    assert its.ranks == (8, 9, 10, 11)
    assert its.confidence == "medium"
    assert its.summary == (
        "12 operations of tp (ranks 8–11) take 3 times as long as the same of the other 3 groups "
        "of tp; which link among them is slow, the trace does not show"
    )
    assert "nvlink" in its.advice
    assert its.cost_ns == pytest.approx(12 * 200e3, rel=0.05)


def test_a_group_without_siblings_is_compared_with_none() -> None:
    (its,) = found(job({2: 300}, of_all=True))
    assert its.ranks == (8, 9, 10, 11)


def test_groups_across_hosts_are_compared_with_each_other() -> None:
    (its,) = found(job({}, across_us={1: 300}))
    assert its.ranks == (1, 5, 9, 13)
    assert its.confidence == "medium"
    assert "adapters" in its.advice


@pytest.mark.parametrize(
    "took_us",
    [
        {},
        {2: 120},  # less than 1.25 times
        {1: 300, 2: 300},  # half of them
        {1: 180, 2: 300},  # others differ as much
    ],
)
def test_siblings_that_differ_anyway_are_no_links(took_us: Mapping[int, float]) -> None:
    assert not found(job(took_us))


def test_of_two_groups_on_one_host_each_the_slower_is_named_with_doubt() -> None:
    (its,) = found(job({1: 300}, count=2))
    assert (its.ranks, its.confidence) == ((4, 5, 6, 7), "low")
    assert "3 times as long as the same of the only other group of tp" in its.summary
    assert its.cost_ns == pytest.approx(12 * 200_000, rel=0.05)


def test_of_two_groups_across_hosts_nobody_knows_which_is_usual() -> None:
    assert not found(job({1: 300}, count=2, hosts=("a", "b") * 4))
    assert not found(edited(job({1: 300}, count=2), "ranks", host=None))


def test_ranks_that_are_slow_in_their_other_groups_may_be_the_cause() -> None:
    (one, other) = found(job({2: 300}, across_us={1: 300}))
    assert {one.confidence, other.confidence} == {"low"}
    assert "which link or rank among them" in one.summary


def test_of_unknown_hosts_it_may_be_the_only_one_on_several() -> None:
    run = edited(job({2: 300}), "ranks", host=None)
    (its,) = found(run)
    assert its.confidence == "low"
    assert "nor whether they alone are on several hosts" in its.summary


def test_uneven_exchanges_take_as_long_as_their_most_loaded_rank() -> None:
    assert not found(job({2: 300}, op="all_to_all"))
