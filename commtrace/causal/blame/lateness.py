"""What ranks do in each step, and how late they are."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int32
from commtrace.causal.blame.kind import Kind
from commtrace.causal.run.calls import Calls
from commtrace.causal.run.run_graph import run_graph
from commtrace.quantiles import medians

__all__ = ["Lateness", "by_rank_and_step"]

_MOSTLY = 0.5  # of the steps
_ALL = slice(None)


def by_rank_and_step(
    calls: Calls, time_ns: Float64, mine: Bool | slice = _ALL
) -> tuple[Int32, Float64]:
    """The ranks of calls in order, and the sums of a time of each call: ranks × steps.

    Of all calls, or of those of some ranks (a flag for each).
    """
    first = calls.first[mine[calls.first]] if isinstance(mine, np.ndarray) else calls.first
    ranks, of = np.unique(calls.rank[first], return_inverse=True)
    steps, at = np.unique(calls.packed["step"].values(first), return_inverse=True)
    sums = np.zeros((ranks.size, steps.size))
    sums[of, at] = np.bincount(calls.in_step[mine], time_ns)[calls.in_step[first]]
    return ranks, sums


class Lateness(Struct, frozen=True, eq=False):
    """What ``ranks`` did, and how much of it is beyond what is wanted of each: ranks × steps."""

    ranks: Int32
    did_ns: Float64
    beyond_ns: Float64

    @classmethod
    def of(cls, kind: Kind) -> Lateness:
        """By an edit; where nobody is to compare with nothing is beyond what is wanted."""
        calls, own = run_graph(kind.run).calls, kind.work.own_ns
        wanted = np.where(np.isnan(kind.wanted_ns), own, kind.wanted_ns)
        ranks, did = by_rank_and_step(calls, own.sum(axis=1))
        return cls(ranks, did, did - by_rank_and_step(calls, wanted.sum(axis=1))[1])

    def later(self, one: int, other: int) -> float:
        """In what share of the steps one is later than another."""
        of_one, of_other = (
            self.beyond_ns[np.searchsorted(self.ranks, rank)] for rank in (one, other)
        )
        return float((of_one > of_other).mean())

    def all_as(self, rank: int, others: tuple[int, ...], least: float) -> bool:
        """Whether in most steps each of the others is later than the rest, by so much of a rank."""
        theirs = np.isin(self.ranks, others)
        beyond = self.did_ns - medians(self.did_ns[~theirs], axis=0)
        of_rank = beyond[np.searchsorted(self.ranks, rank)]
        as_late = beyond[theirs] > least * np.maximum(of_rank, 0)
        return bool((as_late.mean(axis=1) > _MOSTLY).all())
