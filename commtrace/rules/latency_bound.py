"""Many small operations in a row, whose time is latency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    NULL,
    Bool,
    Float64,
    Int64,
    codes,
    distinct,
    grouped,
    least,
    most,
    nth,
    quantiles,
    sums,
)
from commtrace.causal.edits.run_edits import joined
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Edit, saving
from commtrace.causal.work.cores import full_cores
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.expect import Model, fit, nccl_latency_ns
from commtrace.metrics.run.bandwidth import served, streams, typical_ns
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.rules._together import sent_together, sizes, time_taken
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.units import counted

if TYPE_CHECKING:
    from commtrace.measures import Measures

_SMALL_BYTES = 131_072  # moved in no time by any link
_PAUSE_NS = 1_000_000  # in which much else may run, however long a latency is
_SELDOM = 0.1  # of the small messages
_WITHIN_GB_S, _BETWEEN_GB_S = 1.0, 0.1  # slow links, so that latency is not overstated


class _Latency(Struct, frozen=True):
    """One operation's latency, how it is known, and of how large ones."""

    ns: float
    origin: str
    most_bytes: int


class _Served(Struct, frozen=True, eq=False):
    """Operations, each one's place among its communicator's, and what its kind takes typically."""

    operations: Rows
    place: Int64
    typical_ns: Float64

    def take(self, which: Int64 | Bool) -> _Served:
        """Some of them."""
        return _Served(self.operations.take(which), self.place[which], self.typical_ns[which])


class LatencyBound(Rule, frozen=True):
    """Many small operations follow each other, and most of their time is latency.

    What it detects
        ``min_count`` operations or more of one kind, of at most ``max_bytes`` each, whose latency
        is more than ``min_latency_share`` of what their size takes in the median, in rows without
        a pause: on every rank the next begins within one latency, at most a millisecond, of the
        last one's end, so that little was computed in between, and they could have been one.
        Latency is fitted from this trace to the medians of its sizes, where these differ enough and
        the fit is off by at most ``max_residual`` in the messages' mean, else it is that of NCCL's
        own tuning constants; without NCCL, of collectives up to 131 kB, what moving them at 1 GB/s
        within a host, at 0.1 GB/s between hosts, leaves of their median.
        The potential saving, a row's time from first to last less that of the operations it could
        have been, has to be worth ``min_step_share`` of the step.

    Why it costs time
        Every operation pays for its launch and for every hop of its ring or tree, however
        few bytes it has.

    What to do
        Send them together: flatten the tensors into one, use the coalesced calls or a
        coalescing manager, raise DDP's ``bucket_cap_mb`` where these are its all_reduces.

    Blind spots
        An operation that needs the result of the one before cannot join it; with nothing
        computed in between that is rare, but not measured here. A row becomes one operation for
        every ``bucket_bytes``. Pauses within a step end it, too, though the machine may be their
        cause: fewer would then do. Where gloo's threads wait for the CPU's cores that looks like
        latency, too: the finding says that it is not sure.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_count: int = 10
    min_latency_share: float = 0.5
    max_bytes: int = 1_000_000
    max_residual: float = 0.3
    min_step_share: float = 0.05
    bucket_bytes: int = 25_000_000

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per operation, group and type."""
        several_ranks(run)
        known = served(run)
        known = known.take(known.flags("exact"))
        group, op, dtype = (known.coded(name) for name in ("communicator", "op", "dtype"))
        every = _Served(known, nth(codes(group)), typical_ns(known))
        looked = False
        found: list[tuple[int, Finding]] = []
        for some in map(every.take, grouped(group, op, dtype)):
            latency = self._latency(some, run)
            if latency is not None:
                looked = True
                found += self._among(some, latency, run)
        yield from enough(found, self.min_count, "small operation", "in rows")
        if not looked:
            raise CannotLook(
                "needs a latency: sizes vary too little, or times too little with them, to fit "
                "one; without a fit only NCCL's, and that of small operations, is known"
            )

    def _among(
        self, some: _Served, known: _Latency, run: Measures
    ) -> Iterator[tuple[int, Finding]]:
        """A finding of the group, with how many operations it is about."""
        latency = known.ns
        small = some.take(
            (latency > self.min_latency_share * some.typical_ns)
            & (some.operations.ints("size_bytes") <= known.most_bytes)
        )
        row = _rows(small, latency)
        if distinct(row).size == row.size:
            return
        of_row = _measured(small, row, latency)
        left = np.minimum(1 + of_row.size_bytes // self.bucket_bytes, of_row.count)
        fewer = int((of_row.count - left).sum())
        saved = of_row.took_ns - left * latency - of_row.moving_ns
        estimate = float(saved[left < of_row.count].clip(min=0).sum())
        in_rows = small.take(of_row.count[row] > 1)
        if not worth_reporting(estimate, run, self.min_step_share):
            return
        in_one = _joined(run, small, row, left * latency + of_row.moving_ns)
        gain = saving(run, in_one, estimate, self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        share = min(latency / float(np.median(in_rows.typical_ns)), 1.0)
        joining, op = in_rows.operations, str(in_rows.operations.coded("op").at(0))
        mean_ns = float(of_row.took_ns[of_row.count > 1].sum()) / len(joining)
        full = full_cores(run)
        unsure = f" (not sure: {full}, for which each waits, too)" if full else ""
        finding = self.finding(
            joining,
            summary=(
                f"{counted(len(joining), op)} of {sizes(joining)} each follow one another, and "
                f"{time_taken(share, latency, mean_ns)}: "
                f"{_left(run, small, row, len(joining) - fewer)} would do{unsure}"
            ),
            streams=streams(joining, run),
            saving=gain,
            evidence=(
                Evidence("share of latency", 100 * share, "%", 100 * self.min_latency_share),
                Evidence(f"latency, {known.origin}", latency / 1e3, "µs"),
                Evidence("of a row's time each has, mean", mean_ns / 1e3, "µs"),
                Evidence("operations that could join another", fewer, "operations"),
            ),
            ruled_out=("order: nothing ran long enough in between to need the result",),
            advice=sent_together(run, joining),
            confidence="low" if full else "medium",
        )
        yield len(joining), finding

    def _latency(self, some: _Served, run: Measures) -> _Latency | None:
        """One operation's latency; None if unknown."""
        if model := _fitted(some.operations, self.max_residual):
            return _Latency(model.latency_ns, "fitted from this trace", self.max_bytes)
        if (some.operations.ints("ranks") == NULL).any():
            return None
        op, ranks = str(some.operations.coded("op").at(0)), int(some.operations.ints("ranks")[0])
        nodes = min(max(len(run.rows("ranks").coded("host").occurring()), 1), ranks)
        if run.rows("groups").coded("backend").being("nccl").any():
            ns, origin = nccl_latency_ns(op, ranks, nodes=nodes), "by NCCL's tuning constants"
            return None if ns is None else _Latency(ns, origin, self.max_bytes)
        # A message that was posted early takes as long as the other end lets it.
        return None if op in POINT_TO_POINT else _beyond_moving(some, nodes)

    @staticmethod
    def bad() -> Measures:
        """After a few large ones, 60 all_reduces of 8 kB one after the other."""
        return _all_reduces(pause_us=2)

    @staticmethod
    def good() -> Measures:
        """The same with 200 µs in between."""
        return _all_reduces(pause_us=200)


def _fitted(some: Rows, max_residual: float) -> Model | None:
    """The model of what each size takes in the median, however much one message varies.

    None if messages' medians are off by more than that in the mean.
    """
    size, number = np.unique(some.ints("size_bytes"), return_inverse=True)
    median = quantiles(number, some.ints("transfer_ns"), 50, size.size)
    model = fit(size.astype(np.float64), median)
    if model is None:
        return None
    off = np.abs(median / [model.time_ns(one) for one in size.tolist()] - 1)
    return model if np.average(off, weights=np.bincount(number)) <= max_residual else None


def _beyond_moving(some: _Served, nodes: int) -> _Latency | None:
    """What small messages of some sizes take least, beyond moving at a slow link's bandwidth.

    That of a tenth of them: what comes seldom may have met idle cores by chance.
    """
    gb_s = _WITHIN_GB_S if nodes == 1 else _BETWEEN_GB_S
    size, factor = some.operations.ints("size_bytes"), some.operations.floats("factor")
    small = (size <= _SMALL_BYTES) & ~np.isnan(factor)
    if not small.any():
        return None
    beyond = float(np.quantile((some.typical_ns - size * factor / gb_s)[small], _SELDOM))
    origin = f"what is left of it at {gb_s:g} GB/s"
    return _Latency(beyond, origin, _SMALL_BYTES) if beyond > 0 else None


def _rows(small: _Served, latency: float) -> Int64:
    """Numbers the rows of operations without a pause or another one in between."""
    its = small.operations
    pause = its.ints("last_arrival_ns")[1:] - its.ints("last_end_ns")[:-1]
    begins = (np.diff(small.place) > 1) | (pause > min(latency, _PAUSE_NS))
    return np.concatenate(([0], np.cumsum(begins)))[: len(its)]


def _left(run: Measures, small: _Served, row: Int64, count: int) -> str:
    """How many would do: fewer yet if pauses alone part rows of one step."""
    number = matched(run).matches.ints("operation")
    step = np.full(1 + number.max(), NULL)
    step[number] = run.rows("collectives").ints("step")
    own = step[small.operations.ints("operation")]
    paused = (np.diff(row) > 0) & (np.diff(small.place) == 1) & (np.diff(own) == 0)
    return f"at most {count}" if paused.any() else f"{count}"


def _joined(run: Measures, small: _Served, row: Int64, time_ns: Float64) -> Edit:
    """Each row as its last operation, which takes the time that all need together."""
    first = np.concatenate(([True], row[1:] != row[:-1]))
    last = np.append(first[1:], True)
    of = small.operations.ints("operation")

    def edit(lag_ns: Lags) -> Lags:
        operation = run_graph(run).calls.operation
        times = np.zeros(1 + max(int(operation.max()), int(of.max())))
        times[of] = np.where(first & last, 0.0, time_ns[row])
        later, gone = (np.isin(operation, of[~flags]) for flags in (first, last))
        return joined(run, later, gone, times[operation], lag_ns)

    return edit


class _OfRow(Struct, frozen=True, eq=False):
    """Of each row: its operations, bytes, time once all were there, and that beyond latency."""

    count: Int64
    size_bytes: Int64
    took_ns: Int64
    moving_ns: Float64


def _measured(small: _Served, row: Int64, latency: float) -> _OfRow:
    its, count = small.operations, np.bincount(row)
    start = least(row, its.ints("last_arrival_ns"), count.size)
    end = most(row, its.ints("last_end_ns"), count.size)
    return _OfRow(
        count,
        sums(row, its.ints("size_bytes"), count.size),
        end - start,  # pauses in a row are what the host takes to call the next: one call has none
        np.bincount(row, (small.typical_ns - latency).clip(min=0)).astype(np.float64),
    )


def _all_reduces(pause_us: float) -> Measures:
    run = Tiny(2)
    now = 0.0
    for size, took in [(4_000_000, 60), (16_000_000, 180), (64_000_000, 660)] + [(8_000, 20)] * 60:
        for rank in range(2):
            run.collective(rank, "all_reduce", now, took, size=size)
        now += took + pause_us
    return run.trace()
