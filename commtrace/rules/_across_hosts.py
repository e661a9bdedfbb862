"""Groups whose results are needed at once on slow links, beside others on the fast ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, saving
from commtrace.diagnosis import CannotLook, Finding
from commtrace.metrics.rank.hosts import ranks_of_hosts
from commtrace.metrics.run.bandwidth import served
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.group_hosts import host_count
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._overlapped import DIMENSION
from commtrace.table import Rows
from commtrace.units import rate

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["swapped"]

_FASTER = 2.0  # times: else it may be the groups' sizes and operations
_LARGE_BYTES = 1_000_000  # of smaller ones a latency takes most of the time
_MAY_SPAN = ("dp", "fsdp")  # whose results can come late


class _AcrossHosts(Struct, frozen=True, eq=False):
    """A dimension's operations, at so many GB/s, and those of data parallelism within hosts.

    These are faster, but their results can come later.
    """

    near: Rows
    far: Rows
    near_gb_s: float
    far_gb_s: float

    @property
    def said(self) -> str:
        """What was measured."""
        return (
            f"at {rate(self.far_gb_s)} GB/s, while data parallelism's groups, each on one host, "
            f"have {rate(self.near_gb_s)} GB/s"
        )

    def if_swapped(self, run: Measures, estimate_ns: float, min_step_share: float) -> Saving:
        """What is saved if each had the other's bandwidth."""
        times = self.near_gb_s / self.far_gb_s

        def edit(lag_ns: Lags) -> Lags:
            edges, call = run_graph(run).transfers
            operation = run_graph(run).calls.operation[call]
            factor = np.ones(edges.size)
            factor[np.isin(operation, self.far.ints("operation"))] = 1 / times
            factor[np.isin(operation, self.near.ints("operation"))] = times
            lag = np.rint(lag_ns[edges] * factor).astype(np.int64)
            return changed(lag_ns, (edges.astype(np.int32), lag))

        return saving(run, edit, estimate_ns, min_step_share)


def swapped(its: Finding, run: Measures, whose: str, min_step_share: float) -> Finding:
    """The finding, or that and what is saved if its groups were where those of others are."""
    found = _across_hosts(run, DIMENSION[whose])
    if found is None:
        return its
    gain = found.if_swapped(run, its.weighs_ns, min_step_share)
    if not worth_reporting(gain.cost_ns, run, min_step_share):
        return its
    return replace(
        its,
        summary=f"{its.summary}, {found.said}",
        cost_ns=gain.cost_ns,
        cost_on_top_ns=gain.on_top_ns,
        replayed_step_ns=gain.replayed_step_ns,
        evidence=(*its.evidence, *gain.evidence),
        advice=(
            f"place each group of {whose} on one host, and let those of data parallelism span "
            "hosts: its ranks follow one another then (the last dimension of init_device_mesh; "
            "Megatron-LM's default order)"
        ),
        confidence="medium",
    )


def _across_hosts(run: Measures, dimension: str) -> _AcrossHosts | None:
    """Whether a dimension's groups have slow links, and would find place where others' are."""
    try:
        known = served(run)
    except CannotLook:
        return None
    known = known.take((known.ints("size_bytes") >= _LARGE_BYTES) & known.flags("exact"))
    known = known.take(~np.isnan(known.floats("busbw_gb_s")))
    group = known.coded("communicator")
    of = dimensions_of(run, group)
    on_one = group.where(lambda name: host_count(run, name) == 1)
    mine = of.being(dimension)
    near = of.where(lambda name: name.startswith(_MAY_SPAN)) & on_one
    if not mine.any() or not near.any() or on_one[mine].any() or not _fits(run, known, mine, near):
        return None
    far_gb_s, near_gb_s = (
        float(np.median(known.floats("busbw_gb_s")[its])) for its in (mine, near)
    )
    if near_gb_s < _FASTER * far_gb_s:
        return None
    return _AcrossHosts(known.take(near), known.take(mine), near_gb_s, far_gb_s)


def _fits(run: Measures, known: Rows, mine: Bool, near: Bool) -> bool:
    """Whether a group has no more ranks than are on each host."""
    ranks, on = known.ints("ranks"), ranks_of_hosts(run).values()
    has = min(map(len, on)) if on else int(ranks[near].max())
    return int(ranks[mine].max()) <= has
