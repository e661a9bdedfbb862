"""The late rank enqueues in time and computes longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.causal.culprits import modelled
from commtrace.causal.doing import Doing
from commtrace.causal.lateness import Late, stragglers_doing
from commtrace.diagnosis import Evidence, Finding
from commtrace.rules._culprit import awaited, delays
from commtrace.rules._rule import Rule
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.units import ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures


@dataclass(frozen=True)
class DeviceLate(Rule):
    """A late rank's device computes longer than the others' before the collective.

    What it detects
        A straggler (see that rule: at least ``min_operations``, at least ``min_step_share`` of the
        steps' time) whose device, between one arrival and the next, is busy with compute or
        copies longer than the others' median by at least half of what that costs. On a CPU the
        device is the operators of the calling thread.

    Why it costs time
        The collective is enqueued in time, but waits on its device for work that the others
        have long finished, and they wait for it.

    What to do
        Compare the work: uneven batches or sequence lengths, an uneven split of the layers.
        With the same work, compare the clocks: a throttled or shared device.

    Blind spots
        Whether it does more work or the same work more slowly: the trace has no clock rates.
    """

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per straggler whose device was busy."""
        if modelled(run):
            for culprit in awaited(run, self.min_step_share, "collective"):
                if culprit.cause in ("compute", "copy"):
                    who = numbered("rank", culprit.ranks)
                    yield delays(self, culprit, run, who, self.min_step_share)
            return
        for late, doing in stragglers_doing(run, self.min_operations, self.min_step_share):
            cause = doing.cause(late.each_ns)
            if cause in ("compute", "copy"):
                yield self._finding(late, doing, cause)

    def _finding(self, late: Late, doing: Doing, cause: str) -> Finding:
        more = doing.compute_ns if cause == "compute" else doing.copy_ns
        does = "computes" if cause == "compute" else "copies"
        return self.finding(
            late.gaps,
            summary=(
                f"rank {late.rank} {does} {ms(more)} longer than the others before each "
                "collective that it is late to"
            ),
            ranks=(late.rank,),
            streams=late.streams,
            cost_ns=late.cost_ns,
            evidence=(
                Evidence(f"more {cause} than the others' median", more, "ns", late.each_ns / 2),
                Evidence("more idle time than the others' median", doing.idle_ns, "ns"),
            ),
            ruled_out=(f"a late host: idle time differs by {ms(abs(doing.idle_ns))} only",),
            advice=(
                f"compare the work of rank {late.rank} with the others': batch, sequence lengths, "
                "split of layers; if it is the same, compare the clocks of the devices"
            ),
            confidence="high",
        )

    @staticmethod
    def bad() -> Measures:
        """Rank 1 enqueues in time and computes 4 ms longer."""
        return _run(stall_us=0)

    @staticmethod
    def good() -> Measures:
        """Rank 1's host enqueues 4 ms late; its device has nothing to do."""
        return _run(stall_us=4000)


def _run(stall_us: float) -> Measures:
    run = Tiny(ranks=2)
    for step in range(12):
        start = step * 10_000
        for rank in (0, 1):
            run.step(rank, step, start, 10_000)
            stall = stall_us if rank else 0
            time = 5000 if rank and not stall_us else 1000
            run.kernel(rank, start + stall + 30, time)
            run.collective(
                rank,
                "all_reduce",
                start + stall + 40 + time,
                7960 - stall - time,
                size=1 << 26,
                launch_ns=BASE_NS + round(1e3 * (start + stall + 35)),
            )
    return run.trace()
