"""Many small operations in a row, whose time is latency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    NULL,
    Float64,
    Int64,
    codes,
    distinct,
    grouped,
    least,
    most,
    nth,
    sums,
)
from commtrace.causal.edits.run_edits import joined
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Edit, saving
from commtrace.causal.work.cores import full_cores
from commtrace.comms import members
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.intervals import covered
from commtrace.metrics.rank.activity import device_work
from commtrace.metrics.run.bandwidth import on_gpus, served, streams, typical_ns
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.run_clock import intervals_on_run
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._latency import Latency, Served, latency_of
from commtrace.rules._rule import Rule
from commtrace.rules._together import sent_together, sizes, time_taken
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.units import counted

if TYPE_CHECKING:
    from commtrace.measures import Measures

_PAUSE_NS = 1_000_000  # in which much else may run, however long a latency is
_CALL_NS = 100_000  # in which a host calls the next: beyond that it does other things
_HARDLY = 0.25  # of the latency: kernels that need the result of the one before take longer


class LatencyBound(Rule, frozen=True):
    """Many small operations follow each other, and most of their time is latency.

    What it detects
        ``min_count`` operations or more of one kind, of at most ``max_bytes`` each, whose latency
        is more than ``min_latency_share`` of what their size takes in the median, in rows without
        a pause: on every rank the next begins within one latency, at most a millisecond, of the
        last one's end, so that little was computed in between, and they could have been one. So
        they could where GPUs are idle until the host calls the next, for up to 100 µs.
        Latency is fitted from this trace to the medians of its sizes, where these differ enough and
        the fit is off by at most ``max_residual`` in the messages' mean. With NCCL else it is what
        a hundred collectives or more take alike, one twice as large as another; or what NCCL's own
        tuning constants say, assumed, as the finding says; or what tiny collectives take, if that
        is more: those that moving, at less than any link's bandwidth, takes a tenth of at most. (In
        a row, these are within the constants' latency, too.) Without NCCL it is what moving leaves
        of the median of collectives up to 131 kB. Moving is taken to be at 1 GB/s within a host,
        at 0.1 GB/s between hosts.
        The potential saving, a row's time from first to last less that of the operations it could
        have been, has to be worth ``min_step_share`` of the step. Where latency is assumed, large
        ones are taken to be moved over the NVLinks that such GPUs have, if these are known; and
        what these leave of the small ones' times is latency, up to twice NCCL's constants.

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
        every = Served(known, nth(codes(group)), typical_ns(known))
        looked = False
        found: list[tuple[int, Finding]] = []
        for some in map(every.take, grouped(group, op, dtype)):
            latency = latency_of(run, some, self.max_bytes, self.max_residual)
            if latency is not None:
                looked = True
                found += self._among(some, latency, run)
        yield from enough(found, self.min_count, "small operation", "in rows")
        if not looked:
            raise CannotLook(
                "needs a latency: sizes vary too little, or times too little with them, to fit "
                "one; without a fit only NCCL's, and that of small operations, is known"
            )

    def _among(self, some: Served, known: Latency, run: Measures) -> Iterator[tuple[int, Finding]]:
        """A finding of the group, with how many operations it is about."""
        latency = known.ns
        small = some.take(
            (latency > self.min_latency_share * some.typical_ns)
            & (some.operations.ints("size_bytes") <= known.most_bytes)
        )
        rows = _rows(run, small, known.next_ns)
        row = _buckets(small, rows, self.bucket_bytes)
        if distinct(row).size == row.size:
            return
        of_row = _measured(small, row, known)
        fewer = int((of_row.count - 1).sum())
        saved = of_row.took_ns - latency - of_row.moving_ns
        estimate = float(saved[of_row.count > 1].clip(min=0).sum())
        in_rows = small.take(of_row.count[row] > 1)
        if not worth_reporting(estimate, run, self.min_step_share):
            return
        in_one = _joined(run, small, row, latency + of_row.moving_ns)
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
                f"{time_taken(share, latency, mean_ns, known.assumed)}: "
                f"{_left(run, small, rows, len(joining) - fewer)} would do{unsure}"
            ),
            streams=streams(joining, run),
            saving=gain,
            evidence=(
                Evidence("share of latency", 100 * share, "%", 100 * self.min_latency_share),
                Evidence(f"latency, {known.origin}", latency / 1e3, "µs"),
                Evidence("of a row's time each has, mean", mean_ns / 1e3, "µs"),
                Evidence("operations that could join another", fewer, "operations"),
                *known.of_link,
            ),
            ruled_out=("order: nothing ran long enough in between to need the result",),
            advice=sent_together(run, joining),
            confidence="low" if full else "medium",
        )
        yield len(joining), finding

    @staticmethod
    def bad() -> Measures:
        """After a few large ones, 60 all_reduces of 8 kB one after the other."""
        return _all_reduces(pause_us=2)

    @staticmethod
    def good() -> Measures:
        """The same with 200 µs in between."""
        return _all_reduces(pause_us=200)


def _rows(run: Measures, small: Served, next_ns: float) -> Int64:
    """Numbers the rows of operations without a pause or another one in between.

    None is a pause in which GPUs have next to nothing to run until their host calls the next.
    """
    its = small.operations
    begin_ns, end_ns = its.ints("last_arrival_ns")[1:], its.ints("last_end_ns")[:-1]
    apart, pause_ns = np.diff(small.place) > 1, begin_ns - end_ns
    begins = apart | (pause_ns > min(next_ns, _PAUSE_NS))
    maybe = np.flatnonzero(begins & ~apart & (pause_ns <= _CALL_NS))
    if maybe.size and on_gpus(its, run).all():
        computed_ns = _computed_ns(run, its, end_ns[maybe], begin_ns[maybe])
        begins[maybe] = computed_ns > _HARDLY * next_ns
    return np.concatenate(([0], np.cumsum(begins)))[: len(its)]


def _computed_ns(run: Measures, its: Rows, begin_ns: Int64, end_ns: Int64) -> Int64:
    """In each of some times how long that of their group's GPUs computes that does so longest.

    All of it where a rank's trace tells of no computing at all.
    """
    most_ns = np.zeros_like(begin_ns)
    for rank in members(its.coded("communicator").at(0) or ""):
        on_its = (work.compute for (of, _), work in device_work(run).items() if of == rank)
        known = [when for when in on_its if when is not None and when[0].size]
        for when in known:
            on_run = intervals_on_run(run, rank, when)
            most_ns = np.maximum(most_ns, covered(begin_ns, end_ns, on_run))
        if not known:
            return end_ns - begin_ns
    return most_ns


def _buckets(small: Served, row: Int64, bucket_bytes: int) -> Int64:
    """The rows, each cut where another bucket is full: that can go while the next is filled."""
    size = small.operations.ints("size_bytes").clip(min=0)
    before = np.cumsum(size) - size
    full = (before - before[np.searchsorted(row, row)]) // bucket_bytes
    return codes(row, full)


def _left(run: Measures, small: Served, row: Int64, count: int) -> str:
    """How many would do: fewer yet if pauses alone part rows of one step."""
    number = matched(run).matches.ints("operation")
    step = np.full(1 + number.max(), NULL)
    step[number] = run.rows("collectives").ints("step")
    own = step[small.operations.ints("operation")]
    paused = (np.diff(row) > 0) & (np.diff(small.place) == 1) & (np.diff(own) == 0)
    return f"at most {count}" if paused.any() else f"{count}"


def _joined(run: Measures, small: Served, row: Int64, time_ns: Float64) -> Edit:
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


def _measured(small: Served, row: Int64, known: Latency) -> _OfRow:
    its, count = small.operations, np.bincount(row)
    moving = (small.typical_ns - known.ns).clip(min=0)
    if known.link is not None:
        size = its.ints("size_bytes") * its.floats("factor")
        moving = np.fmin(moving, size / known.link.usual_gb_s)
    start = least(row, its.ints("last_arrival_ns"), count.size)
    end = most(row, its.ints("last_end_ns"), count.size)
    return _OfRow(
        count,
        sums(row, its.ints("size_bytes"), count.size),
        end - start,  # pauses in a row are what the host takes to call the next: one call has none
        np.bincount(row, moving).astype(np.float64),
    )


def _all_reduces(pause_us: float) -> Measures:
    run = Tiny(2)
    now = 0.0
    for size, took in [(4_000_000, 60), (16_000_000, 180), (64_000_000, 660)] + [(8_000, 20)] * 60:
        for rank in range(2):
            run.collective(rank, "all_reduce", now, took, size=size)
        now += took + pause_us
    return run.trace()
