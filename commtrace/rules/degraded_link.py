"""Operations that become slower during the run, for good or for some steps; or stall, a few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, grouped
from commtrace.causal.delays import felt_ns
from commtrace.causal.savings import of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding, too_few
from commtrace.metrics.run.bandwidth import hidden, on_gpus, served, streams, typical_ns
from commtrace.metrics.run.group_dimensions import dimensions_of, spoken
from commtrace.metrics.run.group_hosts import host_count
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median, quantile
from commtrace.rules._change_points import change, typical_before
from commtrace.rules._rule import Rule
from commtrace.rules._slow_steps import SlowSteps, slow_steps
from commtrace.rules._stalled_operations import Stalled, stalled
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.units import clean, counted, ms, size

if TYPE_CHECKING:
    from commtrace.measures import Measures


_TIMED_OUT = (
    "look at this time for retransmits, link errors and time-outs (counters of NICs, nvidia-smi "
    "nvlink -e, NCCL_DEBUG=WARN), and for what else paused GPUs or used the network"
)
_NAMED = 5  # steps
_MORE_COMPUTE = 0.2  # of the operations' time beside compute: that may slow them


class _Served(Struct, frozen=True, eq=False):
    """Operations, and each one's transfer by that of its kind, and its share under compute."""

    operations: Rows
    relative: Float64
    hidden: Float64

    def take(self, which: slice | Int64 | Bool) -> _Served:
        """Some of them."""
        return _Served(self.operations.take(which), self.relative[which], self.hidden[which])


class _Degraded(Struct, frozen=True, eq=False):
    """What changed in one group: so many operations ``before``, and those ``after``.

    The change is between ``last_ns``, the end of the last before, and ``since_ns``; the group's
    first operation was at ``first_ns``.
    """

    before: int
    after: Rows
    slower_ns: Int64
    ratio: float
    chance: float
    more_compute: float
    first_ns: int
    last_ns: int
    since_ns: int


class DegradedLink(Rule, frozen=True):
    """From one moment of the run on, or for once, the same operations take longer for everybody.

    What it detects
        In a group with ``min_count`` operations of at least ``min_bytes``, a moment after which
        transfers, each against the median of its own kind and size, take more than ``min_ratio``
        times as long as before, all but a tenth of them longer than nine tenths of those before; by
        a test for a change point (Pettitt) that noise passes with a chance below ``max_chance``;
        and worth ``min_step_share`` of the step. Waiting for late ranks is not part of a transfer,
        what compute hides does not count, nor what CPUs move within one host. And one operation of
        a group of GPUs, or a twentieth of ``min_count`` or more of its kind, that take ten times as
        long as is usual of these once all ranks are there, though they move no more than twice the
        usual bytes. And, where nothing changes for good, steps, fewer than the others, in which
        nearly all operations of a group of GPUs take half as long again as nearly all of the same
        in the others.

    Why it costs time
        A link that lost lanes, retransmits, or a network card that throttles slows every
        operation of the group from then on; a time-out and retry on the way stalls one, and all
        who wait for it.

    What to do
        At the time named, look at the counters of NICs and NVLinks (``nvidia-smi nvlink -e``),
        the kernel's log (Xid, link speed), temperatures; take the host out and compare.

    Blind spots
        One change is detected, not several; a link that recovers is detected if the slow part is
        long. A neighbour's job on the same switch looks the same; so does a GPU that pauses within
        the operation's kernel.
    """

    of_single_events: ClassVar[bool] = True
    explains: ClassVar[tuple[str, ...]] = ("below-link-speed", "exposed-communication", "slow-link")

    min_count: int = 20
    min_bytes: int = 100_000
    min_ratio: float = 1.25
    max_chance: float = 1e-4
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per group, or per dimension whose groups change at once; one of stalls."""
        several_ranks(run)
        known = served(run)
        for stalls in stalled(run, known, self.min_count):
            yield from self._stalls(run, stalls)
        known = known.take(
            known.flags("exact")
            & (known.ints("size_bytes") >= self.min_bytes)
            & known.coded("communicator").known
        )
        within = _within_a_cpu(run, known)
        if within.all() and len(known):
            raise CannotLook("needs operations of GPUs, or between hosts: all are within one host")
        known = known.take(~within)
        relative = known.ints("transfer_ns") / typical_ns(known)
        every = _Served(known, relative, hidden(known, run))
        groups = grouped(known.coded("communicator"))
        many = (every.take(some) for some in groups if some.size >= max(self.min_count, 2))
        changes = [*filter(None, map(self._change, many))]
        for at_once in _at_once(run, changes):
            yield from self._of(run, at_once)
        if not changes:
            yield from self._of_steps(run, slow_steps(run, known))
        had = max((some.size for some in groups), default=0)
        if had < max(self.min_count, 2):
            which = f"of {size(self.min_bytes)} or more, of one group and recorded on every rank"
            raise too_few(had, "operation", self.min_count, which)

    def _change(self, some: _Served) -> _Degraded | None:
        """What changed in a group, if that is beyond noise and clear."""
        at, chance = change(some.relative, max(self.min_count // 4, 1))
        if chance > self.max_chance:
            return None
        transfer, base = some.operations.ints("transfer_ns"), typical_before(some.operations, at)
        known = at + np.flatnonzero(~np.isnan(base[at:]))
        if not known.size:
            return None
        before, after, slow = some.take(slice(at)), some.take(known), transfer[known] / base[known]
        ratio = median(slow)
        separate = quantile(slow, 0.1) > quantile(transfer[:at] / base[:at], 0.9)
        more_compute = float(median(after.hidden) - median(before.hidden))
        if not (separate and ratio >= self.min_ratio) or more_compute > _MORE_COMPUTE:
            return None
        return _Degraded(
            at,
            after.operations,
            (transfer[known] - base[known]).clip(min=0),
            ratio,
            chance,
            more_compute,
            first_ns=int(some.operations.ints("first_arrival_ns")[0]),
            last_ns=int(before.operations.ints("last_end_ns").max()),
            since_ns=int(after.operations.ints("first_arrival_ns")[0]),
        )

    def _of(self, run: Measures, changes: list[_Degraded]) -> Iterator[Finding]:
        """One finding of what changed in some groups at once, if it saves enough."""
        its, *_ = changes
        after = its.after.table.rows(*(one.after.columns for one in changes))
        slower = np.concatenate([one.slower_ns for one in changes])
        gain = of_transfers(run, after, slower, felt_ns(after, slower, run), self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        since, first = (min(getattr(one, n) for one in changes) for n in ("since_ns", "first_ns"))
        ratio, before = median([one.ratio for one in changes]), sum(one.before for one in changes)
        chance = max(one.chance for one in changes)
        yield self.finding(
            ([since], after.ints("last_end_ns")),
            summary=(
                f"from {ms(since - first)} into the run on, operations of "
                f"{_whose(run, changes)} take {ratio:.2f} times as long as before "
                f"({before} before, {len(after)} after)"
            ),
            streams=streams(after, run),
            saving=gain,
            evidence=(
                Evidence("transfers after against before", ratio, "x", self.min_ratio),
                Evidence("chance of that by noise", chance, "probability", self.max_chance),
                Evidence("operations slowed", len(after), "operations"),
            ),
            ruled_out=(
                "sizes: each operation is compared with its own kind and size",
                "late ranks: waiting is not counted",
                f"contention: compute covers {100 * its.more_compute:+.0f} points more than before",
            ),
            advice="look at this time for NIC and NVLink errors, retransmits and throttling; "
            "compare without the suspected host",
            confidence="medium",
        )

    def _of_steps(self, run: Measures, found: list[SlowSteps]) -> Iterator[Finding]:
        """A finding of the groups whose operations are slow in some steps, the slowest's."""
        if not found:
            return
        most = max(found, key=lambda one: float(one.beyond_ns.sum()))
        found = [one for one in found if one.steps == most.steps]
        rows = most.operations.table.rows(*(one.operations.columns for one in found))
        beyond = np.concatenate([one.beyond_ns for one in found])
        gain = of_transfers(run, rows, beyond, felt_ns(rows, beyond, run), self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        whose = spoken(run, str(most.operations.coded("communicator").at(0)))
        others = f" and {counted(len(found) - 1, 'other group')}" if len(found) > 1 else ""
        yield self.finding(
            (rows.ints("first_arrival_ns"), rows.ints("last_end_ns")),
            summary=(
                f"in {len(most.steps)} of {counted(len(most.steps) + most.others, 'step')} "
                f"({', '.join(map(str, most.steps[:_NAMED]))}) all operations of {whose}{others} "
                f"take {most.ratio:.2f} times as long as in the others, once all ranks are there"
            ),
            streams=streams(rows, run),
            saving=gain,
            evidence=(
                Evidence("transfers against those of other steps", most.ratio, "x"),
                Evidence("operations slowed", len(rows), "operations"),
            ),
            ruled_out=(
                "sizes: each operation is compared with its own kind and size",
                "late ranks: waiting is not counted",
            ),
            advice=_TIMED_OUT,
            confidence="medium",
        )

    def _stalls(self, run: Measures, its: Stalled) -> Iterator[Finding]:
        """A finding of operations of one kind that stall, if they cost enough."""
        rows, beyond = its.operations, its.beyond_ns
        gain = of_transfers(run, rows, beyond, felt_ns(rows, beyond, run), self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        op, count = rows.coded("op").at(0), len(rows)
        whose = spoken(run, str(rows.coded("communicator").at(0)))
        longest = ms(int(rows.ints("transfer_ns").max()))
        takes = f"takes {longest}" if count == 1 else f"take up to {longest}"
        yield self.finding(
            (rows.ints("first_arrival_ns"), rows.ints("last_end_ns")),
            summary=(
                f"{count} of {counted(its.others + count, str(op))} of {whose} {takes} once all "
                f"ranks are there, where {ms(its.usual_ns)} is usual"
            ),
            streams=streams(rows, run),
            saving=gain,
            evidence=(
                Evidence("longest transfer", float(rows.ints("transfer_ns").max()), "ns"),
                Evidence("usual of its kind", its.usual_ns, "ns"),
            ),
            ruled_out=(
                "sizes: they move no more than twice the usual bytes",
                "late ranks: waiting is not counted",
            ),
            advice=_TIMED_OUT,
            confidence="medium",
        )

    @staticmethod
    def bad() -> Measures:
        """30 all_reduces in 400 µs, then 30 in 800."""
        return _all_reduces([400] * 30 + [800] * 30)

    @staticmethod
    def good() -> Measures:
        """30 of 16 MB in 400 µs, then 30 of 32 MB in 800."""
        return _all_reduces([400] * 30 + [800] * 30, [16_000_000] * 30 + [32_000_000] * 30)


def _within_a_cpu(run: Measures, known: Rows) -> Bool:
    """Which cross no link: those that CPUs move within one host, whose cores others may take."""
    group = known.coded("communicator")
    return group.where(lambda name: host_count(run, name) == 1) & ~on_gpus(known, run)


def _at_once(run: Measures, changes: list[_Degraded]) -> list[list[_Degraded]]:
    """Those of one dimension's groups that may be of one moment, together."""
    found: list[list[_Degraded]] = []
    latest: dict[str, list[_Degraded]] = {}
    for one in sorted(changes, key=lambda one: one.since_ns):
        dimension = _dimension(run, one)
        together = latest.get(dimension or "", [])
        if together and max(together[0].last_ns, one.last_ns) <= together[0].since_ns:
            together.append(one)
            continue
        found.append([one])
        if dimension is not None:
            latest[dimension] = found[-1]
    return found


def _dimension(run: Measures, of: _Degraded) -> str | None:
    return dimensions_of(run, of.after.coded("communicator").take(slice(1))).at(0)


def _whose(run: Measures, changes: list[_Degraded]) -> str:
    """Of which groups, in words."""
    if len(changes) > 1:
        return f"{len(changes)} groups of {clean(_dimension(run, changes[0]), 24)}"
    return spoken(run, str(changes[0].after.coded("communicator").at(0)))


def _all_reduces(took_us: list[int], sizes: list[int] | None = None) -> Measures:
    run = Tiny(2)
    for i, took in enumerate(took_us):
        for rank in range(2):
            size = (sizes or [16_000_000] * len(took_us))[i]
            run.collective(rank, "all_reduce", i * 1000, took, size=size)
    return run.trace()
