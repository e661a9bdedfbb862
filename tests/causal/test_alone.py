"""What ranks save alone: as if all were replayed, though few are."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commtrace.arrays import Int64
from commtrace.causal.blame import alone
from commtrace.causal.blame.alone import Alone

RANKS = 9


class Replays:
    """Ranks that save so much in each of three steps, and who was replayed."""

    def __init__(self, saved_ns: Sequence[int]) -> None:
        self._saved_ns = np.asarray(saved_ns)
        self.ranks = list[int]()

    def __call__(self, ranks: Sequence[int]) -> Int64:
        self.ranks += ranks
        return np.stack([self._saved_ns[list(ranks)]] * 3)


savings = st.lists(st.integers(-50, 100), min_size=RANKS, max_size=RANKS)
slacks = st.lists(st.integers(0, 200), min_size=RANKS, max_size=RANKS)


@given(savings, slacks, st.sets(st.integers(0, RANKS - 1)), st.integers(0, 300))
def test_the_most_is_that_of_all(
    saved: list[int], slack: list[int], asked: set[int], least: int
) -> None:
    most = {rank: max(3 * saved[rank], 0) + slack[rank] for rank in range(RANKS)}
    its = {rank: 3 * saved[rank] if rank in asked else most[rank] for rank in range(RANKS)}
    replays = Replays(saved)
    with patch.object(alone, "_AT_ONCE", 2):
        found = Alone(sorted(asked), most, replays).most(range(RANKS), least)
    assert found == max([least, *its.values()])
    assert len(set(replays.ranks)) == len(replays.ranks)
    assert len(asked) <= 2 or all(most[rank] > least for rank in replays.ranks)


@given(savings, slacks, st.integers(0, 300))
def test_who_saves_so_much_is_among_those_that_can(
    saved: list[int], slack: list[int], least: int
) -> None:
    most = {rank: max(3 * saved[rank], 0) + slack[rank] for rank in range(RANKS)}
    its = Alone(range(RANKS), most, Replays(saved))
    can = its.beyond(least)
    assert {rank for rank in range(RANKS) if 3 * saved[rank] >= least} <= set(can)
    if can:
        assert its.steps(can).sum(axis=0).tolist() == [3 * saved[rank] for rank in can]
