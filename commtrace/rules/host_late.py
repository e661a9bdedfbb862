"""The late rank enqueues late, with nothing to do on its device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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
class HostLate(Rule):
    """A late rank's host enqueues the collective late while its device is idle.

    What it detects
        A straggler (see that rule: at least ``min_operations``, at least ``min_step_share`` of the
        steps' time) whose device, between one arrival and the next, is idle longer than the
        others' median by at least half of what that costs, and whose host enqueues later by at
        least half of it. On a CPU, where enqueueing is the start, the calling thread's idle
        time alone decides.

    Why it costs time
        Every other rank, and its device, waits for a host that does something else.

    What to do
        Prefetch the data, drop host synchronisation (``item()``, ``print``), keep garbage
        collection out of the steps, give the process its own cores.

    Blind spots
        What the host did instead: a trace without Python stacks does not show it. Of a CPU only the
        outermost operators are kept, and only where work runs on it.
    """

    explains: ClassVar[tuple[str, ...]] = ("copy-loop", "launch-gap")

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per straggler whose device was idle."""
        if modelled(run):
            for culprit in awaited(run, self.min_step_share, "collective"):
                if culprit.cause in ("host", "loader", "checkpoint", "garbage-collection"):
                    who = numbered("rank", culprit.ranks)
                    yield delays(self, culprit, run, who, self.min_step_share)
            return
        for late, doing in stragglers_doing(run, self.min_operations, self.min_step_share):
            if doing.cause(late.each_ns) == "idle" and _enqueued_late(late, doing):
                yield self._finding(late, doing)

    def _finding(self, late: Late, doing: Doing) -> Finding:
        half = late.each_ns / 2
        launch = [] if doing.launch_ns is None else [doing.launch_ns]
        where = "calling thread" if late.cpu else "device"
        return self.finding(
            late.gaps,
            summary=(
                f"rank {late.rank}'s host is late: before a collective its {where} is idle "
                f"{ms(doing.idle_ns)} longer than the others'"
            ),
            ranks=(late.rank,),
            streams=late.streams,
            cost_ns=late.cost_ns,
            evidence=(
                Evidence("more idle time than the others' median", doing.idle_ns, "ns", half),
                *(
                    Evidence("enqueued later than the others' median", time, "ns", half)
                    for time in launch
                ),
            ),
            ruled_out=(
                f"more work: compute differs by {ms(abs(doing.compute_ns))} only",
                f"more copies: they differ by {ms(abs(doing.copy_ns))} only",
            ),
            advice=(
                f"look at what rank {late.rank}'s host does before it enqueues: data loading, "
                "host synchronisation, garbage collection, other processes on its cores"
            ),
            confidence="medium" if late.cpu else "high",
        )

    @staticmethod
    def bad() -> Measures:
        """Rank 1's host enqueues everything 4 ms late; its device has nothing to do."""
        return _run(stall_us=4000)

    @staticmethod
    def good() -> Measures:
        """Rank 1 enqueues in time and computes 4 ms longer."""
        return _run(stall_us=0)


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


def _enqueued_late(late: Late, doing: Doing) -> bool:
    return late.cpu or (doing.launch_ns is not None and doing.launch_ns >= late.each_ns / 2)
