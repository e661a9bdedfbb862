"""Siblings call alike, though in unlike sizes, as replicas whose texts are of unlike lengths."""

from __future__ import annotations

import numpy as np
import pytest

from commtrace.causal.run.calls import calls
from commtrace.measures import Measures
from commtrace.synthetic import Tiny

GROUPS = {"a": (0, 1), "b": (2, 3)}


def ranks_at_each_place(run: Measures) -> list[int]:
    its = calls(run)
    every = (its.rank[its.in_place == place] for place in np.unique(its.in_place))
    return sorted(len(set(ranks.tolist())) for ranks in every)


def siblings(sizes: dict[str, list[int]], *, before: bool = False, sends: bool = False) -> Measures:
    """Two groups of two ranks that all_reduce these sizes in each of three steps."""
    run = Tiny(4)
    run.groups |= GROUPS
    for group, ranks in GROUPS.items():
        for rank in ranks:
            if before and group == "a":
                run.collective(rank, "all_reduce", -500, 50, size=1 << 24, group="a", step=None)
            for step in range(3):
                begin = 10_000.0 * step
                run.step(rank, step, begin, 10_000)
                for nth, size in enumerate(sizes[group]):
                    at = begin + 100 + 1_000 * nth
                    run.collective(rank, "all_reduce", at, 500, size=size << 10, group=group)
                if sends:
                    op, peer = (("send", "recv")[rank % 2], rank ^ 1)
                    run.collective(rank, op, begin + 9_000, 50, size=99, group=group, peer=peer)
    return run.trace()


@pytest.mark.parametrize("before", [False, True])  # the first step, where one group calls more
def test_siblings_are_compared_though_their_sizes_differ(before: bool) -> None:
    run = siblings({"a": [64, 80], "b": [72, 96]}, before=before)
    assert ranks_at_each_place(run) == before * [2] + 2 * 3 * [4]


def test_sizes_that_all_have_tell_calls_apart_in_whatever_order() -> None:
    """A scalar and gradients, which one group calls the other way round; and texts."""
    run = siblings({"a": [1, 4096, 64], "b": [4096, 1, 80]})
    assert ranks_at_each_place(run) == 3 * 3 * [4]
    its = calls(run)
    size = run.rows("collectives", its.row).ints("size_bytes")
    of_each = {place: {*size[its.in_place == place].tolist()} for place in its.in_place.tolist()}
    assert {1 << 10} in of_each.values()
    assert {4096 << 10} in of_each.values()


@pytest.mark.parametrize(
    "sizes",
    [
        {"a": [64, 80], "b": [72]},  # one calls less often
        {"a": [64, 64], "b": [64, 64]},
    ],
)
def test_else_sizes_tell(sizes: dict[str, list[int]]) -> None:
    unlike = len(sizes["a"]) != len(sizes["b"])
    assert ranks_at_each_place(siblings(sizes)) == 3 * ([2, 2, 2] if unlike else [4, 4])


def test_stages_that_send_are_compared_with_their_own() -> None:
    assert 4 not in ranks_at_each_place(siblings({"a": [64], "b": [80]}, sends=True))
