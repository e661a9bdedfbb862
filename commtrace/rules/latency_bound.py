"""Many small operations in a row, whose time is latency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import among, codes, grouped, nth
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import saving
from commtrace.causal.work.cores import full_cores
from commtrace.comms import FROM_ROOT
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.metrics.run.bandwidth import served, streams, typical_ns
from commtrace.metrics.run.group_dimensions import kin
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.message_rows import message_rows
from commtrace.metrics.run.stages import micro_batches
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._latency import Latency, Served, latency_of
from commtrace.rules._less import OF_SHARDS
from commtrace.rules._rule import Rule
from commtrace.rules._small_messages import small_messages
from commtrace.rules._small_rows import SmallRows, small_rows
from commtrace.rules._small_units import small_units
from commtrace.rules._together import follow_one_another, sent_together
from commtrace.synthetic import Tiny
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures


_OF_LARGER = 0.6  # of the share: what larger ones take is not assumed


class LatencyBound(Rule, frozen=True):
    """Many small operations follow each other, and most of their time is latency.

    What it detects
        ``min_count`` operations or more of one kind, of at most ``max_bytes`` each, whose latency
        is more than ``min_latency_share`` of what their size takes in the median, in rows without
        a pause: on every rank the next begins within one latency, at most a millisecond, of the
        last one's end, so that little was computed in between, and they could have been one. So
        they could where GPUs are idle until the host calls the next, for up to 100 µs, or 500 µs
        where each is a scalar of 64 bytes at most, as where the norm of each gradient is read. And
        all_gathers and reduce_scatters of sharded parameters, whatever is computed in between,
        if they are a tenth of the group's largest: those of units that could be part of others.
        And, without NCCL, messages of up to 131 kB that one rank sends another in a row of eight
        or more, with no matrix multiplied and no millisecond spent on either before the next.
        Groups alike, as of one dimension of a mesh, are one finding. What hands on a pipeline's
        micro-batches cannot be one message, and does not count.
        Latency is fitted from this trace to the medians of its sizes, where these differ enough and
        the fit is off by at most ``max_residual`` in the messages' mean; or by the line through two
        sizes, one 16 times as large as the other; not if all are of 4 kB or less. With NCCL else it
        is what a hundred collectives or more take alike, one twice as large as another; or what
        NCCL's own tuning constants say, assumed, as the finding says; or what tiny collectives
        take, if that is more: those that moving, at less than any link's bandwidth, takes a tenth
        of at most; or, for all_reduces, all_gathers and reduce_scatters, what others of these of
        their group leave, 16 times as large or more, at their bandwidth: a share of 0.6
        ``min_latency_share`` then suffices. (In a row, these are within the constants' latency,
        too.) Without NCCL it is what moving leaves of the median of collectives up to 131 kB.
        Moving is taken to be at 1 GB/s within a host, at 0.1 GB/s between hosts. Of up to 4 kB
        latency has to be half the share only: no link needs time for so few bytes, whatever makes
        them take longer.
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
    max_bytes: int = 4_000_000
    max_residual: float = 0.3
    min_step_share: float = 0.05
    bucket_bytes: int = 25_000_000

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per operation, group and type; one of what shards a group's parameters."""
        several_ranks(run)
        messages = small_messages(run)
        causes = [] if messages is None else [[messages]]
        try:
            causes += self._in_rows(run)
        except CannotLook:
            if not causes:
                raise
        findings = (self._finding(run, kinds) for kinds in causes)
        many = [its for its in findings if its is not None]
        yield from enough(many, self.min_count, "small operation", "in rows")

    def _in_rows(self, run: Measures) -> list[list[SmallRows]]:
        """What else could be fewer, by its cause. CannotLook where no latency is known."""
        known = served(run)
        # Of a broadcast whose root is unknown it is the shortest duration, which waits for nobody.
        whole = known.ints("present") == known.ints("expected")
        whole &= known.coded("op").where(FROM_ROOT.__contains__)
        elsewhere = np.append(micro_batches(run), message_rows(run).operation)
        handed_on = among(known.ints("operation"), elsewhere)
        known = known.take((known.flags("exact") | whole) & ~handed_on)
        group, op, dtype = (known.coded(name) for name in ("communicator", "op", "dtype"))
        every = Served(known, nth(codes(group)), typical_ns(known))
        looked, found = False, dict[tuple[str | None, ...], list[SmallRows]]()
        for some in map(every.take, grouped(group, op, dtype)):
            latency = latency_of(run, some, self.max_bytes, self.max_residual)
            if latency is None:
                continue
            looked = True
            share = self._share(latency)
            its = small_units(run, some, latency, share) or small_rows(
                run, some, latency, share, self.bucket_bytes
            )
            if its is not None:
                found.setdefault(_cause(run, its.joining), []).append(its)
        if not looked:
            raise CannotLook(
                "needs operations of one kind in several sizes, whose times grow with these, to "
                "tell latency from transfer; or small ones, or NCCL's, whose latency is known"
            )
        return [*found.values()]

    def _share(self, latency: Latency) -> float:
        """What share of the time it has to be."""
        return self.min_latency_share * (_OF_LARGER if latency.of_larger else 1)

    def _finding(self, run: Measures, kinds: list[SmallRows]) -> tuple[int, Finding] | None:
        """A finding of what has one cause, with how many operations it is about."""
        by_name = _by_name(kinds)
        # Groups alike communicate at once.
        estimate = sum(max(its.estimate_ns for its in alike) for alike in by_name)
        if not worth_reporting(estimate, run, self.min_step_share):
            return None

        def edit(lag_ns: Lags) -> Lags:
            for its in kinds:
                lag_ns = its.in_one(lag_ns)
            return lag_ns

        gain = saving(run, edit, estimate, self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return None
        most = max(kinds, key=lambda its: its.estimate_ns)
        joining = _joining(run, kinds)
        share_pct = 100 * self._share(most.latency)
        full = full_cores(run)
        unsure = f" (not sure: {full}, for which each waits, too)" if full else ""
        finding = self.finding(
            joining,
            summary="; ".join(
                follow_one_another(run, _joining(run, alike), alike) for alike in by_name
            )
            + unsure,
            streams=streams(joining, run),
            saving=gain,
            evidence=(
                Evidence("share of latency", 100 * most.share, "%", share_pct),
                Evidence(f"latency, {most.latency.origin}", most.latency.ns / 1e3, "µs"),
                Evidence("of a row's time each has, mean", most.mean_ns / 1e3, "µs"),
                Evidence(
                    "operations that could join another",
                    sum(its.fewer for its in kinds),
                    "operations",
                ),
                *most.latency.of_link,
            ),
            ruled_out=("order: nothing ran long enough in between to need the result",),
            advice=sent_together(run, joining),
            confidence="low" if full else "medium",
        )
        return len(joining), finding

    @staticmethod
    def bad() -> Measures:
        """After a few large ones, 60 all_reduces of 8 kB one after the other."""
        return _all_reduces(pause_us=2)

    @staticmethod
    def good() -> Measures:
        """The same with 200 µs in between."""
        return _all_reduces(pause_us=200)


def _by_name(kinds: list[SmallRows]) -> list[list[SmallRows]]:
    named: dict[str | None, list[SmallRows]] = {}
    for its in kinds:
        named.setdefault(its.joining.coded("op").at(0), []).append(its)
    return [*named.values()]


def _joining(run: Measures, kinds: list[SmallRows]) -> Rows:
    """The operations of several kinds."""
    numbers = np.concatenate([its.joining.ints("operation") for its in kinds])
    return matched(run).operations.take(np.sort(numbers))


def _cause(run: Measures, its: Rows) -> tuple[str | None, ...]:
    """What operations of one kind have in common with others of the same cause.

    Groups alike, as those of one dimension of a mesh, run the same program.
    """
    group, op, dtype = (its.coded(name).at(0) for name in ("communicator", "op", "dtype"))
    alike = kin(run).get(group, group)
    return (alike,) if op in OF_SHARDS else (alike, op, dtype)


def _all_reduces(pause_us: float) -> Measures:
    run = Tiny(2)
    now = 0.0
    for size, took in [(4_000_000, 60), (16_000_000, 180), (64_000_000, 660)] + [(8_000, 20)] * 60:
        for rank in range(2):
            run.collective(rank, "all_reduce", now, took, size=size)
        now += took + pause_us
    return run.trace()
