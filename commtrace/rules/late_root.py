"""A broadcast or scatter waits for its root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commtrace.causal.awaited import Awaited, rooted, systematic
from commtrace.causal.culprits import modelled
from commtrace.diagnosis import Evidence, Finding
from commtrace.rules._culprit import awaited, delays
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

_FROM_ROOT = ("broadcast", "scatter")


@dataclass(frozen=True)
class LateRoot(Rule):
    """The root of broadcasts or scatters arrives after everybody else.

    What it detects
        A root that is the last to arrive at its broadcasts or scatters more often than one
        in as many as there are ranks (a binomial test over at least ``min_operations`` of
        one communicator and root), and the time between the second-latest arrival and the
        root's is at least ``min_step_share`` of the steps' time.

    Why it costs time
        Nobody can receive what the root has not sent: all wait for it.

    What to do
        Let the root make what it sends earlier, or send it later in everybody's order, after
        work that does not need it; choose a root that is ready sooner.

    Blind spots
        NCCL's metadata does not name the root: there the rule is skipped. A root that is
        late because it waited elsewhere, or was let out of the operation before later than
        others, is not blamed.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per communicator and root."""
        if modelled(run):
            for culprit in awaited(run, self.min_step_share, "root"):
                who = f"root {numbered('rank', culprit.ranks)}"
                yield delays(self, culprit, run, who, self.min_step_share)
            return
        rows = rooted(run, _FROM_ROOT, self.min_operations)
        at_root = rows["root"] == rows["rank"]
        limits = self.min_operations, self.min_step_share
        for late in systematic(rows, at_root, ["communicator", "root"], run, limits):
            yield self._finding(late)

    def _finding(self, late: Awaited) -> Finding:
        root = late.key[1]
        return self.finding(
            late.waits,
            summary=(
                f"root rank {root} is last to {len(late.waits)} of its {late.operations} "
                f"broadcasts or scatters, by {ms(late.median_ns)}: {ms(late.cost_ns)} of waiting"
            ),
            ranks=(root,),
            streams=late.streams,
            cost_ns=late.cost_ns,
            evidence=(
                Evidence("operations whose root was last", len(late.waits), "operations"),
                Evidence("chance of that, corrected", late.p_value, "probability", 0.05),
                Evidence("median lateness behind the second-latest", late.median_ns, "ns"),
            ),
            ruled_out=(
                "clock error: only lateness above three times the clocks' error is counted",
                "inherited lateness: what the root had waited elsewhere is not counted",
            ),
            advice=(
                f"let rank {root} prepare what it sends earlier, or move the call after work "
                "that does not need it"
            ),
            confidence="high" if late.p_value < 1e-3 else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """The root of twelve broadcasts comes 3 ms after the others."""
        return _run((4000, 1000, 1000))

    @staticmethod
    def good() -> Measures:
        """Another rank comes 3 ms after the root and the third."""
        return _run((1000, 4000, 1000))


def _run(arrivals_us: tuple[float, ...]) -> Measures:
    run = Tiny(ranks=3)
    for i in range(12):
        for rank, arrival in enumerate(arrivals_us):
            start = i * 10_000 + arrival
            run.collective(rank, "broadcast", start, 6000 - arrival, size=1 << 26, root=0)
    return run.trace()
