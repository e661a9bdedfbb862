"""Some ranks exchange more bytes in an all_to_all than others, who wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, distinct
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.savings import Saving
from commtrace.causal.work.segments import own_work
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.all_to_all_loads import IMBALANCE, Loads, in_one_memory, loads
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._rule import Rule
from commtrace.rules._uneven import even_split, if_even, if_even_with_work, works_on_bytes
from commtrace.synthetic import Tiny
from commtrace.units import counted, mb, ms, multiple

if TYPE_CHECKING:
    from commtrace.measures import Measures


_ALIKE = 0.1  # of what devices differ by: hosts


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
        share of the transfer that the largest has above the mean: t(1 - mean / max); with what the
        busiest rank works on its bytes, where that costs less (else a straggler has both); where
        it changes, with what is saved if all work on theirs in their mean time.

    Blind spots
        Needs every rank's trace. Bytes between pairs are not measured, only each rank's sums: an
        exchange can be even by rank and still crowd one link. Each rank is taken to have its own
        link; where ranks of one host share theirs, less is saved. gloo within one host is not
        checked: all bytes cross the same memory, and their sum sets the time. Whether routing is
        uneven only in one phase of the training, one recording cannot show; how often the same rank
        is the busiest is in the evidence, ``steady_pct`` makes it the culprit.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    imbalance: float = IMBALANCE
    min_step_share: float = 0.01
    steady_pct: float = 80.0

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per group."""
        if not run.rows("collectives").coded("op").being("all_to_all").any():
            return
        if len(run.rows("ranks")) < 2:
            raise CannotLook("needs several ranks: what the others exchange is unknown")
        if in_one_memory(run):
            raise CannotLook(
                "needs several hosts, or NCCL: within a host all bytes of gloo cross its memory"
            )
        every = loads(run)
        if not len(every.operations):
            raise CannotLook("needs the sizes of an all_to_all on every rank of its group")
        group = every.operations.coded("communicator")
        for name in group.occurring():
            of_group = group.being(name)
            uneven = every.take(of_group & (every.imbalance > self.imbalance))
            gain = if_even(run, uneven, self.min_step_share)
            if uneven.busiest.size and worth_reporting(gain.cost_ns, run, self.min_step_share):
                yield self._finding(run, uneven, int(of_group.sum()), gain)

    def _finding(self, run: Measures, its: Loads, count: int, gain: Saving) -> Finding:
        uneven = its.imbalance.size
        busiest = int(np.bincount(its.busiest).argmax())
        share = 100 * float((its.busiest == busiest).mean())
        steady = share >= self.steady_pct
        imbalance, most = median(its.imbalance), median(its.most_bytes)
        transfer_ns = median(its.operations.ints("transfer_ns"))
        arrival_ns = its.operations.ints("first_arrival_ns")
        who = f"rank {busiest}" if steady else "the busiest rank (it changes)"
        alone_ns = gain.cost_ns
        late = _late_with_it(run, busiest, self.min_step_share) if steady else None
        besides, explains = "", None
        both = None if steady else if_even_with_work(run, its, self.min_step_share)
        if both is not None and both.cost_ns > alone_ns:
            works_ns, gain = both.cost_ns - alone_ns, both
            besides = f"; in the saving are {ms(works_ns)} in all that it works on them"
            explains = (*self.explains, *_late_for_bytes(run, self.min_step_share))
        if late is not None:
            explains = (*self.explains, "straggler", "device-late")
            split = even_split(run, late, self.min_step_share)
            works_ns = round(split.part * late.on_top_ns)
            gain = gain.and_also(works_ns, late.steps_ns.size)
            besides = f"; in the saving are {ms(works_ns)} in all that it works on them"
        return self.finding(
            (
                np.where(arrival_ns == NULL, its.start_ns, arrival_ns),
                its.operations.ints("last_end_ns"),
            ),
            summary=(
                f"{uneven} of {counted(count, 'all_to_all')} "
                f"{'is' if uneven == 1 else 'are'} uneven: {who} has {mb(most)}, "
                f"{multiple(imbalance)} the mean{besides}"
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
                f"otherwise: up to {ms(alone_ns / uneven)} per operation"
            ),
            confidence="high" if uneven >= 10 and steady else "medium",
            explains=explains,
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


def _late_for_bytes(run: Measures, min_step_share: float) -> tuple[str, ...]:
    """The rules whose findings are of work on all_to_alls' bytes, if all culprits compute there."""
    try:
        found = culprits(run, min_step_share).found
    except CannotLook:
        return ()
    there = works_on_bytes(run)[[its.call for its in found]].all()
    if not there or any(its.cause != "compute" for its in found):
        return ()
    work = own_work(run)
    hosts, devices = np.abs(work.own_ns - work.mean_ns).sum(axis=0)
    return ("straggler", "device-late", *(("jitter",) if hosts < _ALIKE * devices else ()))


def _late_with_it(run: Measures, rank: int, min_step_share: float) -> Culprit | None:
    """The culprit that a rank is for what it receives more, if that delays less than its bytes."""
    try:
        found = culprits(run, min_step_share).found
    except CannotLook:
        return None
    mine = (its for its in found if rank in its.ranks)
    return next((its for its in mine if even_split(run, its, min_step_share).mostly_bytes), None)
