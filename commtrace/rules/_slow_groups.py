"""Which process groups of more than two ranks are slower than their siblings, and by how much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import Bool, Float64, Int64, codes, distinct, first_rows, rows_by
from commtrace.comms import EVEN, members
from commtrace.metrics.run.bandwidth import on_gpus, served
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.group_hosts import host_count
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.quantiles import median, quantile, quantiles
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SlowGroups", "slow_groups"]

_SIBLINGS = 3  # of two on several hosts nobody knows by how much such groups differ
_PAIR = 2
_NEARLY = 0.25  # of what the slowest takes more: who takes so much more is slow, too
_FEW = 0.25  # of all siblings


class SlowGroups(Struct, frozen=True, eq=False):
    """The ``transfers`` of ``groups`` of one dimension that are slower than those of all others.

    ``usual_ns`` is what each takes in a typical sibling, ``rest`` are the siblings' own, and
    ``ratio`` is how many times as long the slow ones take. ``separable`` is whether all their ranks
    communicate as fast as others in groups of another dimension; ``hosts`` is on how many
    hosts each of them is, and each of the others, None where that is unknown.
    """

    groups: tuple[str, ...]
    transfers: Rows
    usual_ns: Float64
    rest: Rows
    ratio: float
    hosts: int | None
    separable: bool = False

    @property
    def less_ns(self) -> Float64:
        """What each operation would take less in a group like the others."""
        return np.asarray((self.transfers.ints("transfer_ns") - self.usual_ns).clip(min=0))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The groups' ranks."""
        return tuple(sorted(_ranks(self.groups)))


class _Siblings(Struct, frozen=True, eq=False):
    """Operations of groups alike, one number of ``family``, and what such a one usually takes."""

    operations: Rows
    family: Int64
    usual_ns: Float64

    @property
    def relative(self) -> Float64:
        """What each takes, against what is usual."""
        return np.asarray(self.operations.ints("transfer_ns") / self.usual_ns)

    def take(self, which: Bool) -> _Siblings:
        """Some of them."""
        return _Siblings(self.operations.take(which), self.family[which], self.usual_ns[which])


def slow_groups(run: Measures, min_count: int, min_ratio: float) -> list[SlowGroups] | None:
    """The groups that stand out among their siblings; None if no dimension has enough of them."""
    several_ranks(run)
    every = _siblings(run, min_count)
    if not every.family.size:
        return None
    each = (every.take(every.family == number) for number in distinct(every.family))
    found = [its for its in (_standing_out(some, run, min_ratio) for some in each) if its]
    slow = {group for its in found for group in its.groups}
    fast = _ranks({*every.operations.coded("communicator").occurring()} - slow)
    return [structs.replace(its, separable=fast.issuperset(its.ranks)) for its in found]


def _siblings(run: Measures, min_count: int) -> _Siblings:
    """The operations that can be compared: of one kind in three groups of a dimension or more.

    Or in two that are each on one host, of which the faster one is usual. Groups that are alike in
    the number of their ranks and hosts, or whose hosts are unknown, and have so many operations.
    """
    known = served(run, late=True)
    known = known.take(
        known.flags("exact")
        & known.coded("op").where(EVEN.__contains__)
        & (known.ints("ranks") > 2)
        & known.coded("communicator").known
        & on_gpus(known, run)
    )
    group = known.coded("communicator")
    count = np.asarray([*(host_count(run, name) or 0 for name in group.names), 0])
    dimension, on = dimensions_of(run, group), count[group.codes]
    compared = dimension.known & (np.bincount(group.codes)[group.codes] >= min_count)
    known, dimension, on = known.take(compared), dimension.take(compared), on[compared]
    family = codes(dimension, known.ints("ranks"), on)
    kind = codes(family, *(known.columns[name] for name in ("op", "dtype", "size_bytes")))
    of_group = codes(kind, known.coded("communicator"))
    first = first_rows(of_group)
    typical = quantiles(of_group, known.ints("transfer_ns"), 50, first.size)
    kinds = kind.max(initial=-1) + 1
    least = np.full(kinds, np.inf)
    np.minimum.at(least, kind[first], typical)
    groups = np.bincount(kind[first], minlength=kinds)
    usual = np.where(groups > _PAIR, quantiles(kind[first], typical, 50, kinds), least)
    several = (groups[kind] >= _SIBLINGS) | ((groups[kind] == _PAIR) & (on == 1))
    return _Siblings(known, family, usual[kind]).take(several)


def _standing_out(its: _Siblings, run: Measures, min_ratio: float) -> SlowGroups | None:
    """The slowest of a family, or few of them, whom no other is nearly as slow as."""
    group, relative = its.operations.coded("communicator"), its.relative
    level = {name: median(relative[at]) for (name,), at in rows_by(group).items()}
    usual = float(median([*level.values()]) if len(level) > _PAIR else min(level.values()))
    least = usual + _NEARLY * (max(level.values()) - usual)
    slow = tuple(name for name, its_level in level.items() if its_level > least)
    of_slow = group.where(slow.__contains__)
    above, below = relative[of_slow], relative[~of_slow]
    few = 0 < len(slow) <= max(1, _FEW * len(level))
    if not few or quantile(above, 0.25) <= quantile(below, 0.75):
        return None
    ratio = float(median(above) / median(below))
    if ratio < min_ratio:
        return None
    operations, rest = its.operations.take(of_slow), its.operations.take(~of_slow)
    on = host_count(run, slow[0])
    return SlowGroups(slow, operations, its.usual_ns[of_slow], rest, ratio, on)


def _ranks(groups: Iterable[str]) -> set[int]:
    return {rank for group in groups for rank in members(group)}
