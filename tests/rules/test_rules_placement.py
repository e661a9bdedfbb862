"""Groups that lie across hosts, where others that lie within them could."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import _ask, diagnose
from commtrace.rules._across_hosts import swapped
from commtrace.synthetic import BASE_NS, Tiny
from tests.edited import edited


def found(run: Measures, rule: str) -> Finding:
    its, *_ = (its for its in diagnose(run).findings if its.rule == rule)  # the costliest
    return its


def across_hosts(
    within_us: float,
    tensor: Sequence[int],
    hosts: str,
    *,
    with_all: bool = False,
    dimensions: tuple[str, str] = ("tp", "dp"),
) -> Measures:
    """Tensor parallelism's two groups are across hosts, data parallelism's pairs within each.

    Or those of other ``dimensions``. ``tensor`` is the first of the two, the other has the ranks
    behind its. Data parallelism's group is one ``with_all``, if it is to.
    """
    run, (far, near) = Tiny(2 * len(tensor), hosts=tuple(hosts)), dimensions
    run.groups |= {f"{far}0": tuple(tensor), f"{far}1": tuple(rank + 1 for rank in tensor)}
    run.groups |= {f"{near}{rank}": (rank, rank + 1) for rank in tensor}
    for step in range(6):
        for rank in range(2 * len(tensor)):
            tp, dp = f"{far}{rank % 2}", "0" if with_all else f"{near}{rank - rank % 2}"
            at = 6_000.0 * step
            ahead = {"launch_ns": BASE_NS + round(1e3 * at) + 5_000}
            run.step(rank, step, at, 6_000)
            for _ in range(4):
                run.kernel(rank, at + 10, 300, **ahead)
                run.collective(
                    rank, "all_reduce", at + 312, 900, size=40_000_000, group=tp, **ahead
                )
                at += 1_205
                ahead = {"launch_ns": ahead["launch_ns"] + 1_000}
            run.collective(
                rank, "all_reduce", at + 12, within_us, size=40_000_000, group=dp, **ahead
            )
            run.blocking_call(rank, "cudaDeviceSynchronize", 6_000 * step + 20, 4_820 + within_us)
    return run.trace()


PLACED = "place each group of tensor parallelism on one host"


@pytest.mark.parametrize(("within_us", "swap"), [(150, True), (900, False)])
def test_groups_that_cannot_wait_are_placed_on_the_fast_links(within_us: float, swap: bool) -> None:
    its = found(across_hosts(within_us, (0, 2), "aabb"), "exposed-communication")
    assert (PLACED in its.advice) == swap
    if swap:
        assert its.cost_ns == pytest.approx(6 * (4 * 750_000 - 750_000), rel=0.05)


@pytest.mark.parametrize(
    ("dimensions", "told"),
    [
        (("dp", "pp"), "place each group of data parallelism on one host, and let those of pipel"),
        (("ep", "dp"), "place each group of expert parallelism on one host, and let those of data"),
        (("pp", "dp"), ""),  # as it should be
    ],
)
def test_all_but_pipelines_are_rather_within_hosts(dimensions: tuple[str, str], told: str) -> None:
    run = across_hosts(150, (0, 2), "aabb", dimensions=dimensions)
    exposed = replace(found(across_hosts(900, (0, 2), "aabb"), "exposed-communication"), advice="")
    its = swapped(exposed, run, None, 0.05)
    assert its.advice.startswith(told)
    assert (its.cost_ns > 6 * 2_000_000) == bool(told)


@pytest.mark.parametrize(("hosts", "fits"), [("aaaabbbb", True), ("aabbccdd", False)])
def test_groups_are_placed_on_hosts_that_have_as_many_ranks(hosts: str, fits: bool) -> None:
    """However few ranks the groups have that are within hosts now."""
    its = found(across_hosts(100, (0, 2, 4, 6), hosts), "exposed-communication")
    assert (PLACED in its.advice) == fits


@pytest.mark.parametrize(("gpu", "known"), [("NVIDIA H100 80GB HBM3", True), ("H0", False)])
def test_where_nothing_else_is_within_hosts_their_links_are_assumed(gpu: str, known: bool) -> None:
    run = across_hosts(150, (0, 2), "aabb", with_all=True)
    its = found(edited(run, "ranks", gpu=gpu), "exposed-communication")
    assert (PLACED in its.advice) == known
    if known:
        assert "while within a host NVLink4 x18 usually reaches 370 GB/s" in its.summary
        assert its.confidence == "low"
        assert its.cost_ns == pytest.approx(6 * 4 * 900_000 * (1 - 44.4 / 370), rel=0.05)


def hybrid(
    shards: Sequence[tuple[int, ...]], replicas: Sequence[tuple[int, ...]], name: str = "replicate"
) -> Measures:
    """On two hosts of four GPUs four gathers of 0.9 ms a step, and an all_reduce of 0.15 ms."""
    run = Tiny(8, hosts=tuple("aaaabbbb"))
    of = {rank: f"mesh_dp_shard{ranks[0]}" for ranks in shards for rank in ranks}
    by = {rank: f"mesh_dp_{name}{ranks[0]}" for ranks in replicas for rank in ranks}
    run.groups = {of[ranks[0]]: ranks for ranks in shards}
    run.groups |= {by[ranks[0]]: ranks for ranks in replicas}
    for step in range(6):
        for rank in range(8):
            at = 6_000.0 * step
            ahead = {"launch_ns": BASE_NS + round(1e3 * at) + 5_000}
            run.step(rank, step, at, 6_000)
            for _ in range(4):
                run.kernel(rank, at + 10, 100, **ahead)
                gather = {"size": 40_000_000, "group": of[rank], **ahead}
                run.collective(rank, "all_gather", at + 112, 900, **gather)
                at += 1_005
                ahead = {"launch_ns": ahead["launch_ns"] + 1_000}
            reduce = {"size": 20_000_000, "group": by[rank], **ahead}
            run.collective(rank, "all_reduce", at + 12, 150, **reduce)
            run.blocking_call(rank, "cudaDeviceSynchronize", 6_000 * step + 20, 4_170)
    return run.trace()


PAIRS = [(rank, rank + 4) for rank in range(4)]
FOURS = [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize("name", ["replicate", "rep"])
def test_a_mesh_whose_shards_are_gathered_across_hosts_is_turned_round(name: str) -> None:
    """A gather moves 1.5 times as much then, nine times as fast, an all_reduce a third, as slowly.

    So they take 150 and 450 us.
    """
    its = found(hybrid(PAIRS, FOURS, name), "exposed-communication")
    assert (
        "across hosts, at 22.2 GB/s, while the replicas' groups, each on one host, have 200 GB/s"
        in its.summary
    )
    assert "shard within hosts and replicate across them" in its.advice
    assert its.cost_ns == pytest.approx(6 * (4 * 750_000 - 300_000), rel=0.05)


@pytest.mark.parametrize(("gpu", "us"), [("H0", 4 * 675 - 450), ("NVIDIA H100", 4 * 819 - 450)])
def test_as_many_shards_as_a_host_has_ranks_stay_so_many(gpu: str, us: int) -> None:
    """Gathers at 33 GB/s then have what replicas have, 133, or what links are known to give."""
    run = hybrid([(0, 1, 4, 5), (2, 3, 6, 7)], [(0, 2), (1, 3), (4, 6), (5, 7)])
    its = found(edited(run, "ranks", gpu=gpu), "exposed-communication")
    assert "shard within hosts and replicate across them" in its.advice
    assert its.confidence == "medium"
    assert its.cost_ns == pytest.approx(6 * us * 1000, rel=0.05)


def test_one_whose_shards_are_within_hosts_is_as_it_should_be() -> None:
    assert "replicate across" not in found(hybrid(FOURS, PAIRS), "exposed-communication").advice


def stages_within(message_us: float, replicas: int = 1) -> Measures:
    """Two stages on each of two hosts, and tensor parallelism's pairs across these.

    Two replicas on each host average their gradients behind.
    """
    half = 2 * replicas
    run = Tiny(2 * half, hosts=("a",) * half + ("b",) * half)
    run.groups |= {f"tp{rank}": (rank, rank + half) for rank in range(half)}
    run.groups |= {f"pp{rank}": (rank, rank + 1) for rank in range(0, 2 * half, 2)}
    if replicas > 1:
        run.groups |= {f"dp{rank}": (rank, rank + 2) for rank in (0, 1, 4, 5)}
    for step, rank in product(range(6), range(2 * half)):
        at = 6_000.0 * step + 1_010 * (rank % 2)
        ahead = {"launch_ns": BASE_NS + round(6e6 * step) + 5_000}
        run.step(rank, step, 6_000 * step, 6_000)
        message = {"size": 20_000_000, "group": f"pp{rank - rank % 2}", "stream": 30, **ahead}
        if rank % 2:
            run.collective(rank, "recv", at - 900, 1_000, peer=rank - 1, **message)
        for _ in range(3):
            run.kernel(rank, at + 110, 300, **ahead)
            reduced = {"size": 40_000_000, "group": f"tp{rank % half}", **ahead}
            run.collective(rank, "all_reduce", at + 412, 900, **reduced)
            at += 1_205
        if not rank % 2:
            sent = 6_000.0 * step + 1_110 - message_us
            run.collective(rank, "send", sent, message_us, peer=rank + 1, **message)
        if replicas > 1:
            averaged = {"size": 150_000_000, "group": f"dp{rank - rank % 4 + rank % 2}", **ahead}
            run.collective(rank, "all_reduce", 6_000 * step + 4_800, 800, **averaged)
        run.blocking_call(rank, "cudaDeviceSynchronize", 6_000 * step + 20, 5_900)
    return run.trace()


@pytest.mark.parametrize(("message_us", "swap"), [(100, True), (450, False)])
def test_pipelines_that_send_little_may_span_hosts_instead(message_us: float, swap: bool) -> None:
    its = found(stages_within(message_us), "exposed-communication")
    assert (PLACED in its.advice) == swap
    assert ("let those of pipelines span hosts" in its.advice) == swap


def test_of_two_that_may_span_hosts_instead_that_which_sends_less_is_told() -> None:
    """Gradients would take long between hosts, what a pipeline hands on would not."""
    its = found(stages_within(100, replicas=2), "exposed-communication")
    assert "while groups of pipelines, each on one host" in its.summary
    assert "let those of pipelines span hosts" in its.advice


@pytest.mark.parametrize(("less_ns", "itself"), [(1_788, True), (4_000, False)])
def test_placement_is_no_symptom_of_what_costs_less(less_ns: int, itself: bool) -> None:
    its = found(hybrid(PAIRS, FOURS), "exposed-communication")
    other = replace(its, rule="redundant", cost_ns=round(its.cost_ns * less_ns / 3_023))
    first, second = _ask._ordered([replace(its, explained_by=None), other], its.cost_ns)
    assert (first.rule == its.rule) == itself
    assert second.explained_by == (None if itself else "redundant")


def test_of_what_may_be_needed_half_counts_but_where_it_is_known_what_to_change() -> None:
    """A trace does not show whether a result is needed; that a mesh lies wrong it does.

    What jitter saves is part of what is exposed, so that of this half of the rest counts.
    """
    its = replace(found(hybrid(PAIRS, FOURS), "exposed-communication"), explained_by=None)
    for itself, share, first in (
        (True, 0.9, its.rule),
        (False, 0.9, "jitter"),
        (False, 0.4, "jitter"),
        (False, 0.3, its.rule),
    ):
        other = replace(its, rule="jitter", cost_ns=round(share * its.cost_ns))
        order = _ask._ordered([replace(its, by_itself=itself), other], its.cost_ns)
        assert order[0].rule == first
