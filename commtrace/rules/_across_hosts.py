"""Groups whose results are needed at once on slow links, beside others on the fast ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace as with_fields

from commtrace.arrays import Bool
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, saving
from commtrace.comms import members
from commtrace.diagnosis import Finding
from commtrace.expect import Link
from commtrace.metrics.rank.hosts import ranks_of_hosts
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.group_hosts import host_count
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._at_once import DIMENSION
from commtrace.rules._between_hosts import large_operations
from commtrace.table import Coded, Rows
from commtrace.topology import usual_link
from commtrace.units import rate

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["swapped", "transposed"]

_FASTER = 2.0  # times: else it may be the groups' sizes and operations
_MAY_SPAN = {("dp", "fsdp"): "data parallelism", ("pp",): "pipelines"}
"""Dimensions whose groups may span hosts: their results can come late, or they send little."""
_WITHIN = {
    **{whose: (name,) for whose, name in DIMENSION.items() if name != "pp"},
    "data parallelism": ("dp", "fsdp"),
}
"""Dimensions that are rather placed within hosts than others: all but pipelines."""


class _AcrossHosts(Struct, frozen=True, eq=False):
    """A dimension's operations, at so many GB/s, and another's within hosts, which are faster.

    Each would move so many times as much over its links if it were where the other is. There may be
    none of another, whose place is free then, or they may send too little to be as fast as the
    ``link`` that connects GPUs there. It is ``sure`` if they are faster, nevertheless; they are of
    ``others`` in words.
    """

    near: Rows
    far: Rows
    near_gb_s: float
    far_gb_s: float
    within_gb_s: float
    near_traffic: float = 1.0
    far_traffic: float = 1.0
    link: str = ""
    sure: bool = False
    others: str = ""

    def said(self, whose: str) -> str:
        """What was measured, and whose groups are within hosts, or what link."""
        if self.link:
            within = f"within a host {self.link} usually reaches {rate(self.within_gb_s)} GB/s"
        else:
            within = f"{whose}, each on one host, have {rate(self.within_gb_s)} GB/s"
        return f"at {rate(self.far_gb_s)} GB/s, while {within}"

    def if_swapped(self, run: Measures, estimate_ns: float, min_step_share: float) -> Saving:
        """What is saved if each had the other's bandwidth."""
        faster, slower = (gb_s / self.far_gb_s for gb_s in (self.within_gb_s, self.near_gb_s))

        def edit(lag_ns: Lags) -> Lags:
            edges, call = run_graph(run).transfers
            operation = run_graph(run).calls.operation[call]
            factor = np.ones(edges.size)
            factor[np.isin(operation, self.far.ints("operation"))] = self.far_traffic / faster
            factor[np.isin(operation, self.near.ints("operation"))] = self.near_traffic * slower
            lag = np.rint(lag_ns[edges] * factor).astype(np.int64)
            return changed(lag_ns, (edges.astype(np.int32), lag))

        return saving(run, edit, estimate_ns, min_step_share)


def swapped(its: Finding, run: Measures, whose: str | None, min_step_share: float) -> Finding:
    """The finding, or that and what is saved if groups that span hosts were where others are.

    Of several groups and others those with whom most is saved; ``whose`` it already says.
    """
    better = [its]
    for said, names in _WITHIN.items():
        for found in _across_hosts(run, names):
            instead = "" if found.link else f", and let those of {found.others} span hosts"
            advice = (
                f"place each group of {said} on one host{instead}: its ranks follow one another "
                "then (the last dimension of init_device_mesh; Megatron-LM's default order)"
            )
            mine = (
                its
                if said == whose
                else replace(its, summary=f"{its.summary}; {said}'s runs across hosts")
            )
            others = f"groups of {found.others}"
            swap = _with(mine, run, found, others, advice, min_step_share)
            better.append(swap if swap is not mine else its)
    return max(better, key=lambda one: one.cost_ns)


def transposed(its: Finding, run: Measures, min_step_share: float) -> Finding | None:
    """The finding with what is saved if hybrid sharding's mesh lay the other way round."""
    found = _sharded_across_hosts(run)
    if found is None:
        return None
    advice = (
        "shard within hosts and replicate across them: init_device_mesh((hosts, GPUs of a host), "
        "mesh_dim_names=('replicate', 'shard')), where a host can hold all shards"
    )
    better = _with(its, run, found, "the replicas' groups", advice, min_step_share)
    return None if better is its else better


def _with(
    its: Finding,
    run: Measures,
    found: _AcrossHosts,
    others: str,
    advice: str,
    min_step_share: float,
) -> Finding:
    gain = found.if_swapped(run, its.weighs_ns, min_step_share)
    if not worth_reporting(gain.cost_ns, run, min_step_share):
        return its
    return replace(
        its,
        summary=f"{its.summary}, {found.said(others)}",
        cost_ns=gain.cost_ns,
        cost_on_top_ns=gain.on_top_ns,
        replayed_step_ns=gain.replayed_step_ns,
        evidence=(*its.evidence, *gain.evidence),
        advice=advice,
        confidence="medium" if found.sure else "low",
        by_itself=True,
    )


def _across_hosts(run: Measures, dimension: tuple[str, ...]) -> list[_AcrossHosts]:
    """Where a dimension's groups have slow links those of others in whose place they would fit."""
    may_span = dimension in _MAY_SPAN
    is_far = _starting(dimension) if may_span else dimension.__contains__
    found = [
        with_fields(swap, others=others)
        for names, others in _MAY_SPAN.items()
        if names != dimension and (swap := _apart(run, is_far, _starting(names))) is not None
    ]
    if found or may_span:
        return found
    alone = _displacing_none(run, is_far)
    return [] if alone is None else [alone]


def _starting(names: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: name.startswith(names)


def _displacing_none(run: Measures, is_far: Callable[[str], bool]) -> _AcrossHosts | None:
    """The same where all other groups span hosts wherever their ranks are: those of all ranks."""
    spanning, link = _spanning(run, is_far), usual_link(run, one_host=True)
    if spanning is None or link is None:
        return None
    known, mine, every = spanning.known, spanning.mine, len(run.rows("ranks"))
    others = known.coded("communicator").take(np.flatnonzero(~mine)).occurring()
    free = all(len(members(name)) == every for name in others)
    if not free or not _fits(run, known, mine, mine):
        return None
    far_gb_s = median(known.floats("busbw_gb_s")[mine])
    if link.usual_gb_s < _FASTER * far_gb_s:
        return None
    none = known.take(np.empty(0, np.int64))
    usual = link.usual_gb_s
    return _AcrossHosts(none, known.take(mine), usual, far_gb_s, usual, link=link.name)


def _sharded_across_hosts(run: Measures) -> _AcrossHosts | None:
    """Whether what is sharded is gathered across hosts, and replicas are reduced within them.

    Of s shards and r replicas a gather moves (s-1)/s of all bytes over a rank's link, an all_reduce
    of a shard 2(r-1)/r of an s-th of these. As many shards as a host has ranks stay so many.
    """
    link = usual_link(run, one_host=True)
    found = _apart(run, lambda name: "shard" in name, lambda name: "rep" in name, link)
    if found is None:
        return None
    shards, replicas = (median(its.ints("ranks")) for its in (found.far, found.near))
    if shards == _ranks_of_a_host(run):
        return found
    more = (1 - 1 / replicas) / (1 - 1 / shards)
    return with_fields(found, far_traffic=more, near_traffic=shards / replicas / more)


def _apart(
    run: Measures,
    is_far: Callable[[str], bool],
    is_near: Callable[[str], bool],
    link: Link | None = None,
) -> _AcrossHosts | None:
    """Dimensions across hosts and within, if the former is far slower and would find place.

    Or far slower than the ``link`` within hosts, where what is sent there is too little for it.
    """
    if (spanning := _spanning(run, is_far)) is None:
        return None
    known, mine = spanning.known, spanning.mine
    near = spanning.of.where(is_near) & spanning.on_one
    if not near.any() or not _fits(run, known, mine, near):
        return None
    far_gb_s, near_gb_s = (median(known.floats("busbw_gb_s")[its]) for its in (mine, near))
    usual, name = (link.usual_gb_s, link.name) if link else (0.0, "")
    within, link_name = max((near_gb_s, ""), (usual, name))
    if within < _FASTER * far_gb_s:
        return None
    its = _AcrossHosts(known.take(near), known.take(mine), near_gb_s, far_gb_s, within)
    return with_fields(its, link=link_name, sure=near_gb_s >= _FASTER * far_gb_s)


class _Spanning(Struct, frozen=True, eq=False):
    """The large operations, with their dimensions, whether on one host, and which are ``mine``."""

    known: Rows
    of: Coded
    on_one: Bool
    mine: Bool


def _spanning(run: Measures, is_mine: Callable[[str], bool]) -> _Spanning | None:
    """Those of some dimensions, if all of these span hosts; None if not."""
    if (known := large_operations(run)) is None:
        return None
    group = known.coded("communicator")
    of = dimensions_of(run, group)
    on_one, mine = group.where(lambda name: host_count(run, name) == 1), of.where(is_mine)
    if not mine.any() or on_one[mine].any():
        return None
    return _Spanning(known, of, on_one, mine)


def _fits(run: Measures, known: Rows, mine: Bool, near: Bool) -> bool:
    """Whether a group has no more ranks than are on each host."""
    ranks = known.ints("ranks")
    has = _ranks_of_a_host(run) or int(ranks[near].max())
    return int(ranks[mine].max()) <= has


def _ranks_of_a_host(run: Measures) -> int:
    """The least of them; 0 where nothing is known of hosts."""
    return min(map(len, ranks_of_hosts(run).values()), default=0)
