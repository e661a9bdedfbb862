"""A sender waits for its receiver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commtrace.causal.awaited import Awaited, sent, systematic
from commtrace.causal.culprits import modelled
from commtrace.diagnosis import Evidence, Finding
from commtrace.rules._culprit import awaited, delays
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures


@dataclass(frozen=True)
class LateReceiver(Rule):
    """One rank's recvs come later than the sends that wait for them.

    What it detects
        A sender and a receiver of at least ``min_operations`` messages, where the recv
        starts after the send in more than half of them (a binomial test, corrected for the
        number of pairs), while the send cannot go on without it, and the waits are at least
        ``min_step_share`` of the steps' time.

    Why it costs time
        A large message is moved only when both sides are there: the sender is stalled.

    What to do
        Post the recv before other work (``irecv``), or send asynchronously.

    Blind spots
        A message that is buffered lets its sender go on: it waits for nobody and is not
        counted. A receiver that is late because it waited elsewhere is not blamed. In a
        pipeline some waiting is the schedule's, see pipeline-bubble.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per sender and receiver."""
        if modelled(run):
            for culprit in awaited(run, self.min_step_share, "recv"):
                who = f"receiving {numbered('rank', culprit.ranks)}"
                yield delays(self, culprit, run, who, self.min_step_share)
            return
        rows = sent(run, self.min_operations)
        waiting = rows.loc[(rows["op"] == "send") & (rows["wait_ns"] > 0), "operation"]
        is_late = (rows["op"] == "recv") & rows["operation"].isin(waiting)
        limits = self.min_operations, self.min_step_share
        for late in systematic(rows, is_late, ["sender", "receiver"], run, limits):
            yield self._finding(late)

    def _finding(self, late: Awaited) -> Finding:
        sender, receiver = late.key
        return self.finding(
            late.waits,
            summary=(
                f"rank {sender} waits for rank {receiver}'s recv in {len(late.waits)} of "
                f"{late.operations} messages, {ms(late.median_ns)} each: {ms(late.cost_ns)} in all"
            ),
            ranks=(receiver,),
            streams=late.streams,
            cost_ns=late.cost_ns,
            evidence=(
                Evidence(
                    "messages whose recv came last",
                    len(late.waits),
                    "messages",
                    late.operations / 2,
                ),
                Evidence("chance of that, corrected", late.p_value, "probability", 0.05),
                Evidence("median wait", late.median_ns, "ns"),
            ),
            ruled_out=(
                "clock error: only waits above three times the clocks' error are counted",
                "inherited lateness: what the receiver had waited elsewhere is not counted",
            ),
            advice=(
                f"let rank {receiver} post its recv before other work, or rank {sender} send "
                "asynchronously"
            ),
            confidence="high" if late.p_value < 1e-3 else "medium",
            explained_by="pipeline-bubble",
        )

    @staticmethod
    def bad() -> Measures:
        """Twelve sends, each 3 ms before its recv."""
        return _run(send_at=1000, recv_at=4000)

    @staticmethod
    def good() -> Measures:
        """Twelve recvs, each posted 3 ms before its send."""
        return _run(send_at=4000, recv_at=1000)


def _run(send_at: float, recv_at: float) -> Measures:
    run = Tiny(ranks=2)
    for start in range(0, 120_000, 10_000):
        run.collective(0, "send", start + send_at, 6000 - send_at, size=1 << 26, peer=1)
        run.collective(1, "recv", start + recv_at, 6000 - recv_at, size=1 << 26, peer=0)
    return run.trace()
