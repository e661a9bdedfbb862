"""How late ranks are in each step, by what they do."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int32
from commtrace.causal.blame.kind import Kind
from commtrace.causal.run.run_graph import run_graph
from commtrace.quantiles import medians

__all__ = ["Lateness"]

_MOSTLY = 0.5  # of the steps


class Lateness(Struct, frozen=True, eq=False):
    """What ``ranks`` did, and how much of it is beyond what is wanted of each: ranks × steps."""

    ranks: Int32
    did_ns: Float64
    beyond_ns: Float64

    @classmethod
    def of(cls, kind: Kind) -> Lateness:
        """By an edit; where nobody is to compare with nothing is beyond what is wanted."""
        graph, own = run_graph(kind.run), kind.work.own_ns
        wanted = np.where(np.isnan(kind.wanted_ns), own, kind.wanted_ns)
        ranks, did = graph.by_cell(own.sum(axis=1))
        return cls(ranks, did, did - graph.by_cell(wanted.sum(axis=1))[1])

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
