"""What is usual of others: in groups of values, and of calls at one place of one step."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    Bool,
    Float64,
    Int32,
    Int64,
    Signed,
    codes,
    least,
    most,
    ranges,
    sorted_by,
)
from commtrace.causal.run.calls import Calls
from commtrace.heap import passing

__all__ = ["Grouped", "Usual", "mean_of", "of_the_rest"]

_MOSTLY_ALONE = 2 / 3  # of a step's time: what places it has in common are not the same, either
_Values = Int32 | Int64 | Float64


class Grouped:
    """Values, integers all, in groups that are numbered from 0 without gaps."""

    def __init__(self, group: Signed, value: _Values) -> None:
        self.group = group
        order = sorted_by(value.astype(np.int64) - int(value.min(initial=0)))
        self._order = order[sorted_by(group[order])].astype(np.int32)
        self._value = value
        self._sizes = np.bincount(group)
        self._begins = np.cumsum(self._sizes) - self._sizes

    def others(self) -> Float64:
        """For each value the median of the others of its group; NaN if there are none."""
        begin, size = (
            np.repeat(each.astype(np.int32), self._sizes) for each in (self._begins, self._sizes)
        )
        value = self._value[self._order]
        rank = np.arange(value.size, dtype=np.int32) - begin
        low, high = (size - 2) // 2, (size - 1) // 2  # of those that are left, in their order
        safe = size > 1
        a, b = (value[np.where(safe, begin + half + (rank <= half), begin)] for half in (low, high))
        median = np.empty(value.size)
        median[self._order] = np.where(safe, _middle(a, b), np.nan)
        return median

    def rest(self, but: Bool, groups: Signed) -> Float64:
        """Of each of some groups the median of all values but some (a flag each); NaN of none."""
        is_asked = np.zeros(self._sizes.size, dtype=np.bool_)
        is_asked[groups] = True
        asked = np.flatnonzero(is_asked)
        sizes = self._sizes[asked]
        rows = self._order[ranges(self._begins[asked], sizes)]
        left = np.flatnonzero(~but[rows])
        begins = np.searchsorted(left, np.append(0, np.cumsum(sizes)))
        begin, size = begins[:-1], np.diff(begins)
        a, b = (
            self._value[rows[np.append(left, 0)[begin + half]]]
            for half in (np.maximum(size - 1, 0) // 2, size // 2)
        )
        median = np.full(self._sizes.size, np.nan)
        median[asked] = np.where(size > 0, _middle(a, b), np.nan)
        return median[groups]


def _middle(a: _Values, b: _Values) -> Float64:
    """Not in 32 bits, which their sum may not fit."""
    return np.asarray(np.add(a, b, dtype=np.float64) / 2)


class Usual(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """Times of calls, and what is usual of others at the same place of the same step.

    Where nobody else has such a place, or few of its step's, as one between two neighbours that
    have but one, that is so much of its time as is usual of its step; but where others call as much
    of that kind, only less often, as replicas that generate other texts do, none: what is usual of
    the places that they have is all of theirs.
    """

    calls: Calls
    time_ns: Int32 | Int64

    @cached_property
    def is_any(self) -> bool:
        """Whether any takes time; where none does, none is longer than is usual."""
        return bool(self.time_ns.any())

    @passing
    def at_place(self) -> Grouped:
        """All of them, by place."""
        return Grouped(self.calls.in_place, self.time_ns)

    @cached_property
    def in_step(self) -> Float64:
        """The sum of each rank's step."""
        return np.bincount(self.calls.in_step, weights=self.time_ns).astype(np.float64)

    @cached_property
    def at_step(self) -> Grouped:
        """These sums, by step."""
        return Grouped(codes(self.calls.first_step), self.in_step)

    def of_others(self) -> Float64:
        """Of each call what is usual of all others."""
        every, rank = np.arange(self.time_ns.size), self.calls.rank
        kinds = int(self.calls.of_kind.max(initial=-1)) + 1
        low, high = (f(self.calls.of_kind, rank, kinds) for f in (least, most))
        usual = self._with_none(every, self.at_place.others(), low < high)
        return self._scaled(every, usual, self.at_step.others())

    def of_the_rest(self, mine: Bool, which: Bool) -> Float64:
        """Of some calls that are mine (a flag for each) what is usual of those that are not."""
        rows = np.flatnonzero(which)
        if not self.is_any:
            return np.zeros(rows.size)
        usual = self.at_place.rest(mine, self.calls.in_place[rows])
        usual = self._with_none(rows, usual, np.bincount(self.calls.of_kind, ~mine) > 0)
        by_step = self.at_step.rest(mine[self.calls.first], self.at_step.group)
        return self._scaled(rows, usual, by_step)

    def _with_none(self, rows: Int64, usual: Float64, others_call: Bool) -> Float64:
        """What is usual, 0 at a place that others do not come to, of a kind that they call.

        Not in a pipeline: its stages call differently.
        """
        if self.calls.is_p2p.any():
            return usual
        return np.where(np.isnan(usual) & others_call[self.calls.of_kind[rows]], 0.0, usual)

    def _scaled(self, rows: Int64, usual: Float64, by_step: Float64) -> Float64:
        step, time = self.calls.in_step[rows], self.time_ns[rows]
        alone = np.bincount(step, time * np.isnan(usual), self.in_step.size)
        apart = np.isnan(usual) | (alone > _MOSTLY_ALONE * self.in_step)[step]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(apart, time * (by_step / self.in_step)[step], usual)


def mean_of(value: _Values, group: Int32 | Int64) -> Float64:
    """The mean of each value's group, whose numbers are from 0 without gaps."""
    return (np.bincount(group, value) / np.bincount(group))[group]


def of_the_rest(value: _Values, group: Int32 | Int64, mine: Bool) -> Float64:
    """The median in each value's group of those that are not mine; NaN where there is none."""
    its = Grouped(codes(group), value)
    return its.rest(mine, its.group)
