"""Which ranks share a host."""

from __future__ import annotations

import pytest

from commtrace.metrics.rank.hosts import assumed_hosts, hosts, on_hosts_of_their_own
from commtrace.synthetic import Tiny


@pytest.mark.parametrize(("ranks", "own"), [((0,), False), ((0, 1), True), ((1, 2), False)])
def test_ranks_have_hosts_of_their_own_where_no_other_is(ranks: tuple[int, ...], own: bool) -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on the other."""
    run = Tiny(4, hosts=("a", "b")).trace()
    assert on_hosts_of_their_own(run, ranks) == own


@pytest.mark.parametrize(
    ("gpus", "on"),
    [
        ("0 1 2 3", {}),  # one host, or several that nothing tells apart
        ("0 0 0 0", {}),  # each sees one GPU only
        ("0 1 0 1", {0: "#0", 1: "#0", 2: "#1", 3: "#1"}),
        ("0 1 2 0", {0: "#0", 1: "#0", 2: "#0", 3: "#1"}),
        ("0 0 1 1", {}),  # in no known order
        ("1 2 0 1", {}),
    ],
)
def test_hosts_without_names_are_told_by_their_gpus(gpus: str, on: dict[int, str]) -> None:
    run = Tiny(4, hosts=(None,))
    for rank, gpu in enumerate(gpus.split()):
        run.kernel(rank, 0, 10, device=f"cuda:{gpu}")
    trace = run.trace()
    assert hosts(trace) == on
    assert [note.code for note in assumed_hosts(trace)] == ["assumed-hosts"] * bool(on)


def test_names_are_believed() -> None:
    run = Tiny(4)
    for rank in range(4):
        run.kernel(rank, 0, 10, device=f"cuda:{rank % 2}")
    trace = run.trace()
    assert set(hosts(trace).values()) == {"host"}
    assert not assumed_hosts(trace)


def test_a_rank_of_unknown_gpu_leaves_all_open() -> None:
    run = Tiny(4, hosts=(None,))
    for rank in range(3):
        run.kernel(rank, 0, 10, device=f"cuda:{rank % 2}")
    assert not hosts(run.trace())
