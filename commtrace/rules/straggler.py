"""One rank is late, and all the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commtrace.causal.culprits import modelled
from commtrace.causal.doing import Doing
from commtrace.causal.lateness import Late, late_ranks
from commtrace.diagnosis import Evidence, Finding
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.rules._culprit import awaited, delays
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures


@dataclass(frozen=True)
class Straggler(Rule):
    """One rank arrives last far more often than the others.

    What it detects
        A rank that is the last to arrive at the collectives that everybody waits in more
        often than one in as many as there are ranks: a binomial test over at least
        ``min_operations``, corrected for the number of ranks and communicators, in the whole
        run or else in one communicator; and the rank that most steps waited for longest. What
        it costs is at least ``min_step_share`` of the steps' time: how long the others compute
        nothing since it came later than the second-latest, directly or because the next
        operations queued behind.

    Why it costs time
        A collective moves nothing until its last rank is there. The others spend the wait
        inside the collective, which then looks slow on every rank but the one to blame.

    What to do
        See what it does in the gap: more compute (rebalance), copies (prefetch), or nothing at
        all (data loader, garbage collection, a busy host). The potential saving is the time in
        which it alone was awaited, counted once however many waited.

    Blind spots
        Lateness below the clock's error. A rank outside the trace. Two ranks that are late
        together hide each other: only what separates the last from the second counts. A rank
        that comes late because it waited elsewhere, or was let out of the operation before
        later than others, is not blamed.
    """

    explains: ClassVar[tuple[str, ...]] = ("host-late", "device-late", "exposed-communication")

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per rank that is late, or per set of ranks that are late together."""
        if modelled(run):
            for culprit in awaited(run, self.min_step_share, "collective"):
                who = numbered("rank", culprit.ranks)
                yield delays(self, culprit, run, who, self.min_step_share)
            return
        for late in late_ranks(run, self.min_operations):
            if worth_reporting(late.cost_ns, run, self.min_step_share):
                yield self._finding(late, run)

    def _finding(self, late: Late, run: Measures) -> Finding:
        where = "" if late.communicator is None else f" of {spoken(run, late.communicator)}"
        share = share_pct(late.cost_ns, run)
        return self.finding(
            late.gaps,
            summary=(
                f"rank {late.rank} is last to {late.last} of {late.operations} collectives{where}, "
                f"by {ms(late.median_ns)}: {ms(late.cost_ns)} of waiting"
            ),
            ranks=(late.rank,),
            streams=late.streams,
            cost_ns=late.cost_ns,
            evidence=(
                Evidence("operations it was last in", late.last, "operations", late.expected_last),
                Evidence("chance of that, corrected", late.p_value, "probability", 0.05),
                Evidence("steps it held up most", late.steps_led, "steps", late.steps / 2),
                Evidence("median lateness behind the second-latest", late.median_ns, "ns"),
                Evidence(f"share {of_time(run)}", share, "%", 100 * self.min_step_share),
                *_more(late.doing),
            ),
            ruled_out=(
                "clock error: only lateness above three times the clocks' error is counted",
                "roots: only operations that every rank waits in are counted",
                "inherited lateness: what it had waited elsewhere is not counted",
            ),
            advice=_advice(late),
            confidence="high" if late.p_value < 1e-3 else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """Rank 1 computes 4 ms longer than rank 0 before each of twelve all_reduces."""
        return _run((1000, 5000))

    @staticmethod
    def good() -> Measures:
        """The same, each rank in turn."""
        return _run((1000, 5000), in_turn=True)


def _run(compute_us: tuple[float, float], *, in_turn: bool = False) -> Measures:
    run = Tiny(ranks=2)
    for step in range(12):
        start = step * 10_000
        times = compute_us[::-1] if in_turn and step % 2 else compute_us
        for rank, time in enumerate(times):
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start + 10, time)
            arrival, end = start + 20 + time, start + 8000
            run.collective(rank, "all_reduce", arrival, end - arrival, size=1 << 26)
    return run.trace()


def _more(doing: Doing | None) -> list[Evidence]:
    if doing is None:
        return []
    evidence = [
        Evidence("more compute than the others' median", doing.compute_ns, "ns"),
        Evidence("more copying than the others' median", doing.copy_ns, "ns"),
        Evidence("more idle time than the others' median", doing.idle_ns, "ns"),
    ]
    if doing.launch_ns is not None:
        evidence.append(Evidence("enqueued later than the others' median", doing.launch_ns, "ns"))
    return evidence


def _advice(late: Late) -> str:
    cause = late.doing.cause(late.each_ns) if late.doing else None
    rank = f"rank {late.rank}"
    if late.doing is None or cause is None:
        return f"look at what {rank} does before it arrives; the trace shows no single cause"
    amount = {
        "compute": f"computes {ms(late.doing.compute_ns)} longer: split the work evenly, and "
        "check its clocks",
        "copy": f"copies {ms(late.doing.copy_ns)} longer: prefetch, pin the host's memory",
        "idle": f"is idle for {ms(late.doing.idle_ns)} more: look at its data loader, garbage "
        "collection and host synchronisation",
    }
    return f"before each collective {rank} {amount[cause]}"
