"""Some ranks exchange more bytes in an all_to_all than others, who wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int64, distinct, first_rows, least, numbered, sums
from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.units import counted, mb, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures


class UnevenAllToAll(Rule, frozen=True):
    """Some ranks exchange more bytes in an all_to_all than others, who wait for them.

    What it detects
        all_to_all operations in which the rank that sends or receives the most bytes has
        over ``imbalance`` times what each would have if all had the same, and whose
        transfer would be shorter by ``min_step_share`` of the steps if they had.

    Why it costs time
        The operation is over when its busiest rank has sent and received all it has to: its
        bytes set the time, and the others' links idle meanwhile.

    What to do
        Spread the load: in mixture-of-experts a capacity limit or an auxiliary balancing loss,
        else another placement of experts or of embedding tables. The potential saving is the
        share of the transfer that the largest has above the mean: t(1 - mean / max).

    Blind spots
        Needs every rank's trace. Bytes between pairs are not measured, only each rank's sums: an
        exchange can be even by rank and still crowd one link. Each rank is taken to have its own
        link; where ranks of one host share theirs, less is saved. gloo within one host is not
        checked: all bytes cross the same memory, and their sum sets the time. Whether routing is
        uneven only in one phase of the training, one recording cannot show; how often the same rank
        is the busiest is in the evidence, ``steady_pct`` makes it the culprit.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    imbalance: float = 1.2
    min_step_share: float = 0.01
    steady_pct: float = 80.0

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per group."""
        if not run.rows("collectives").coded("op").being("all_to_all").any():
            return
        if len(run.rows("ranks")) < 2:
            raise CannotLook("needs several ranks: what the others exchange is unknown")
        if _in_one_memory(run):
            raise CannotLook(
                "needs several hosts, or NCCL: within a host all bytes of gloo cross its memory"
            )
        loads = _loads(run)
        if not len(loads.operations):
            raise CannotLook("needs the sizes of an all_to_all on every rank of its group")
        group = loads.operations.coded("communicator")
        for name in group.occurring():
            of_group = group.being(name)
            uneven = loads.take(of_group & (loads.imbalance > self.imbalance))
            less = uneven.operations.ints("transfer_ns") * (1 - 1 / uneven.imbalance)
            gain = of_transfers(
                run, uneven.operations, less, float(less.sum()), self.min_step_share
            )
            if less.size and worth_reporting(gain.cost_ns, run, self.min_step_share):
                yield self._finding(uneven, int(of_group.sum()), gain)

    def _finding(self, its: _Loads, count: int, gain: Saving) -> Finding:
        uneven = its.imbalance.size
        busiest = int(np.bincount(its.busiest).argmax())
        share = 100 * float((its.busiest == busiest).mean())
        steady = share >= self.steady_pct
        imbalance, most = float(np.median(its.imbalance)), float(np.median(its.most_bytes))
        transfer_ns = float(np.median(its.operations.ints("transfer_ns")))
        arrival_ns = its.operations.ints("first_arrival_ns")
        who = f"rank {busiest}" if steady else "the busiest rank (it changes)"
        return self.finding(
            (
                np.where(arrival_ns == NULL, its.start_ns, arrival_ns),
                its.operations.ints("last_end_ns"),
            ),
            summary=(
                f"{uneven} of {counted(count, 'all_to_all')} "
                f"{'is' if uneven == 1 else 'are'} uneven: {who} has {mb(most)}, "
                f"{imbalance:.3g}x the mean"
            ),
            ranks=(busiest,) if steady else (),
            streams=tuple(distinct(its.stream).tolist()),
            saving=gain,
            evidence=(
                Evidence("largest by mean, median", imbalance, "x", self.imbalance),
                Evidence("largest by mean, in the worst", float(its.imbalance.max()), "x"),
                Evidence(f"rank {busiest} is the busiest in", share, "%", self.steady_pct),
                Evidence("transfer, median", transfer_ns / 1e6, "ms"),
            ),
            ruled_out=("late ranks: the time is from the last arrival on",),
            advice=(
                "spread the bytes: capacity limit or balancing loss, or place experts and tables "
                f"otherwise: up to {ms(gain.cost_ns / uneven)} per operation"
            ),
            confidence="high" if uneven >= 10 and steady else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """Rank 0 sends twice as much as the others."""
        return _exchange((2 << 20, 1 << 20, 1 << 20, 1 << 20))

    @staticmethod
    def good() -> Measures:
        """All send as much."""
        return _exchange((1 << 20,) * 4)


def _exchange(sent: tuple[int, ...]) -> Measures:
    run = Tiny(ranks=len(sent))
    received = sum(sent) // len(sent)
    for step in range(12):
        for rank, out in enumerate(sent):
            run.collective(rank, "all_to_all", step * 1000, 500, in_bytes=out, out_bytes=received)
    return run.trace()


def _in_one_memory(run: Measures) -> bool:
    host = run.rows("ranks").coded("host")
    one_host = host.known.all() and len(host.occurring()) == 1
    backend = run.rows("groups").coded("backend")
    return bool(one_host and backend.known.all() and backend.occurring() == ["gloo"])


class _Loads(Struct, frozen=True, eq=False):
    """Operations, with what the busiest rank of each has, and that against the mean."""

    operations: Rows
    most_bytes: Int64
    imbalance: Float64
    busiest: Int64
    stream: Int64
    start_ns: Int64

    def take(self, which: Bool) -> _Loads:
        """Some of them."""
        return _Loads(
            self.operations.take(which),
            self.most_bytes[which],
            self.imbalance[which],
            self.busiest[which],
            self.stream[which],
            self.start_ns[which],
        )


def _loads(run: Measures) -> _Loads:
    """The operations recorded on every rank, whose ranks are on one clock."""
    found = matched(run)
    row = np.flatnonzero(run.rows("collectives").coded("op").being("all_to_all"))
    calls, operation = run.rows("collectives", row), found.matches.ints("operation")[row]
    sent, received = calls.ints("in_bytes"), calls.ints("out_bytes")
    load = np.maximum(sent, received)
    order = np.lexsort((-load.clip(min=-1), operation))
    number = numbered(operation)
    busiest = order[first_rows(number[order])]
    count, sized = busiest.size, sent != NULL
    sizes = np.bincount(number[sized], minlength=count)
    mean = sums(number[sized], sent[sized], count) / sizes.clip(min=1)
    its = found.operations
    its = its.take(np.searchsorted(its.ints("operation"), operation[busiest]))
    whole = its.flags("exact") & (sizes == its.ints("present")) & (mean > 0)
    whole &= (its.ints("transfer_ns") != NULL) & (its.ints("last_end_ns") != NULL)
    return _Loads(
        its,
        load[busiest],
        load[busiest] / np.where(whole, mean, 1.0),
        calls.ints("rank")[busiest],
        calls.ints("stream")[busiest],
        least(number, calls.ints("start_ns"), count),
    ).take(whole)
