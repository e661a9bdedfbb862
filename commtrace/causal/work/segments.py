"""What each rank did by itself between two calls, and what is typical of such a place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import Bool, Float64, Int32, Int64, Signed, narrow, rows_by
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.builder import COPY, DEVICES, FEED, HOSTS, LAUNCH, QUEUE
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.busy import host_busy
from commtrace.causal.work.on_core import OnCore, lags_on_cores, on_core
from commtrace.causal.work.usual import Usual, mean_of
from commtrace.diagnosis import Cause
from commtrace.heap import passing
from commtrace.intervals import NEVER, Intervals, covered, subtract, union, united
from commtrace.measures import measure
from commtrace.metrics.run.run_clock import intervals_on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "CAUSES",
    "DEVICES",
    "HOSTS",
    "LABELLED",
    "OwnWork",
    "idle_ns",
    "labelled",
    "own_intervals",
    "own_parts",
    "own_work",
    "work_on_cores",
    "work_with",
]

LABELLED: dict[Cause, re.Pattern[str]] = {
    "garbage-collection": re.compile(r"commtrace::garbage-collection"),
    "checkpoint": re.compile(
        r"commtrace::checkpoint|(?:torch|dcp|dist_cp|checkpoint)\.(?:async_)?save\b"
        r"|(?i:.*(?:save\w*(?:checkpoint|ckpt)|(?:checkpoint|ckpt)\w*save))"
    ),
    "loader": re.compile(
        r"enumerate\(DataLoader\)#|(?i:.*(?:data_?load|(?:load|next|fetch|get)_?batch))"
    ),
}
"""What the traces' labels say that a host does, torch's, the recorder's and a program's own."""
CAUSES: tuple[Cause, ...] = (*LABELLED, "compute", "copy", "host")


class OwnWork(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """Own work of each call: its rank's since its call before, without waiting, nor for a core.

    Arrays are calls × (HOSTS, DEVICES), for what these do at one time. ``parts`` are the two
    columns, to ask what is usual without some. ``waited_ns`` is what was left out since the rank
    waited for a core, None where no recording says it.
    """

    own_ns: Int32 | Int64
    parts: tuple[Usual, Usual]
    waited_ns: Int64 | None

    def on_clock(self, work_ns: Int32 | Int64 | Float64, which: Any) -> Float64:
        """So much work of some calls, or of places in these arrays, and their waits for a core."""
        times = np.asarray(work_ns, dtype=np.float64)
        return times if self.waited_ns is None else times + self.waited_ns[which]

    @property
    def place(self) -> Signed:
        """A number for the step and the place of each."""
        return self.parts[HOSTS].calls.in_place

    @passing
    def typical_ns(self) -> Float64:
        """The median of the other ranks' at the same place of the same step.

        Where ranks call differently, its own times what the step's own work of a rank is to its
        own in the median; none of what is more of its kind than others call (``usual.Usual``); NaN
        where nobody is to compare with.
        """
        typical = np.where(self._alone, np.nan, 0.0)[:, None].repeat(2, axis=1)
        for at, part in self._working:
            typical[:, at] = part.of_others()
        return typical

    @property
    def mean_ns(self) -> Float64:
        """The mean of all ranks at the same place of the same step, its own included."""
        alone = self._alone
        mean = np.zeros(self.own_ns.shape)
        for at, part in self._working:
            scaled = _as_in_step(part, mean_of(part.in_step, part.at_step.group))
            mean[:, at] = np.where(alone, scaled, mean_of(part.time_ns, self.place))
        return mean

    @property
    def _alone(self) -> Bool:
        """Whose rank alone comes to that place in that step."""
        alone: Bool = (np.bincount(self.place) == 1)[self.place]
        return alone

    @property
    def _working(self) -> list[tuple[int, Usual]]:
        """The columns that hold any work."""
        return [(at, part) for at, part in enumerate(self.parts) if part.is_any]

    @property
    def excess_ns(self) -> Float64:
        """What each call's own work is beyond the typical, on host and device together."""
        return np.asarray(np.nan_to_num(self.own_ns - self.typical_ns).sum(axis=1))


@measure
def own_work(run: Measures) -> OwnWork:
    """The own work of a run's calls, as measured."""
    return _work(run, run_graph(run).graph.lag_ns, on_core(run))


def work_with(run: Measures, lag_ns: Lags) -> OwnWork:
    """The own work of a run's calls with these lags; with those measured it is known already."""
    if lag_ns is run_graph(run).graph.lag_ns:
        return own_work(run)
    return _work(run, lag_ns, on_core(run))


def work_on_cores(run: Measures, lag_ns: Lags) -> OwnWork:
    """The same with ``lags_on_cores``, or with edits of these: no lag holds a wait for a core."""
    if on_core(run) is None:
        return work_with(run, lag_ns)
    if lag_ns is lags_on_cores(run):
        return structs.replace(own_work(run), waited_ns=None)
    return _work(run, lag_ns, None)


def _work(run: Measures, lag_ns: Lags, on: OnCore | None) -> OwnWork:
    calls = run_graph(run).calls
    times, waited = _summed(run, lag_ns), None
    if on is not None:
        waited = _summed(run, lag_ns, 1 - on.whole)
        times -= waited
    own = narrow(times)
    return OwnWork(own, (Usual(calls, own[:, HOSTS]), Usual(calls, own[:, DEVICES])), waited)


def _as_in_step(part: Usual, usual_ns: Float64) -> Float64:
    """The times, so much longer or shorter as what is usual of each rank's step is than it took."""
    calls = part.calls
    with np.errstate(divide="ignore", invalid="ignore"):  # no own work is nothing times any
        return np.asarray(part.time_ns * (usual_ns / part.in_step)[calls.in_step])


def _summed(run: Measures, lag_ns: Lags, share: Float64 | float = 1.0) -> Int64:
    """These lags of each call's own work, or a share of each: calls × (HOSTS, DEVICES)."""
    its = run_graph(run)
    cell, calls = 2 * its.own_call + its.own_column, its.calls.rank.size
    sums: Int64 = np.bincount(cell, lag_ns[its.own] * share, 2 * calls).astype(np.int64)
    return sums.reshape(-1, 2)


@measure
def own_parts(run: Measures) -> Mapping[Cause, Int32 | Int64]:
    """Each call's own work by CAUSES: under a label, in operators or kernels, copies, and none."""
    its = run_graph(run)
    segment, rank = its.own_call, its.calls.rank[its.own_call]
    lag = its.graph.lag_ns[its.own].astype(np.int64)
    on = on_core(run)
    nothing = np.broadcast_to(np.int64(0), its.calls.rank.size)
    parts: dict[Cause, Int64] = dict.fromkeys(CAUSES, nothing)

    def add(cause: Cause, calls: Int32, time_ns: Int64) -> None:
        if not time_ns.any():
            return
        if parts[cause] is nothing:  # most runs lack most causes
            parts[cause] = nothing.copy()
        np.add.at(parts[cause], calls, time_ns)

    on_device = its.own_column == DEVICES
    copies, feeds = (its.graph.kind[its.own] == kind for kind in (COPY, FEED))
    with_gpu = np.zeros(int(its.calls.rank.max()) + 1, dtype=np.bool_)
    with_gpu[its.calls.rank[~its.calls.on_cpu]] = True
    add("copy", segment[copies], lag[copies])
    asks = np.isin(its.graph.kind[its.own], (LAUNCH, QUEUE))
    add("host", segment[asks], lag[asks])  # it is the host that goes to the device and back
    computes = on_device & ~copies
    add("compute", segment[computes], lag[computes])
    on_host = np.flatnonzero(~on_device & ~feeds & ~asks)  # what it feeds is a copy already
    every_end = its.graph.time_ns[its.graph.target[its.own[on_host]]]
    for (one,), at in rows_by(rank[on_host]).items():
        mine, end, found = on_host[at], every_end[at], own_intervals(run, one)
        if with_gpu[one]:
            del found["compute"]  # operators that feed it
        left = lag[mine]
        window = end - left, end
        for cause, when in found.items():
            if not when[0].size:
                continue
            time = covered(*window, when)
            left = left - time
            if on is not None:
                share = (on.operators if cause == "compute" else on.idle)[mine]
                time = np.rint(time * share).astype(np.int64)
            add(cause, segment[mine], time)
        left = left if on is None else np.rint(left * on.idle[mine]).astype(np.int64)
        add("host", segment[mine], left)
    return {cause: its if its is nothing else narrow(its) for cause, its in parts.items()}


@measure
def idle_ns(run: Measures) -> Int32 | Int64:
    """Of each call's own work the time in which its host ran no operator, labelled or not."""
    parts = own_parts(run)
    idle = parts["host"].astype(np.int64)
    for cause in LABELLED:
        idle += parts[cause]
    return narrow(idle)


def own_intervals(run: Measures, rank: int) -> dict[Cause, Intervals]:
    """When a rank did what, on the run's clock: no two at once."""
    found: dict[Cause, Intervals] = {}
    taken = NEVER
    for cause, ranges in labelled(run).items():
        found[cause] = NEVER
        if rank in ranges:  # few are under a label
            found[cause] = subtract(intervals_on_run(run, rank, ranges[rank]), taken)
            taken = united(taken, found[cause])
    return found | {"compute": subtract(host_busy(run, rank), taken)}


@measure
def labelled(run: Measures) -> Mapping[Cause, Mapping[int, Intervals]]:
    """When each rank was under a label of each cause, on its own clock."""
    return {cause: _under(run, pattern) for cause, pattern in LABELLED.items()}


def _under(run: Measures, pattern: re.Pattern[str]) -> dict[int, Intervals]:
    steps = run.rows("steps")
    ranges = steps.take(steps.coded("label").where(lambda name: pattern.match(name) is not None))
    begin, end = ranges.when()
    of_ranks = rows_by(ranges.ints("rank")).items()
    return {rank: union(begin[rows], end[rows]) for (rank,), rows in of_ranks}
