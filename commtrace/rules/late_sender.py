"""A receiver waits for its sender."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commtrace.rules._awaited import Awaited, sent, systematic
from commtrace.rules._common import ms
from commtrace.rules._rule import Rule
from commtrace.rules._tiny import Tiny
from commtrace.schema import Evidence, Finding

if TYPE_CHECKING:
    from commtrace.trace import Trace


@dataclass(frozen=True)
class LateSender(Rule):
    """One rank's sends come later than the recvs that wait for them.

    What it detects
        A sender and a receiver of at least ``min_operations`` messages, where the send
        starts after the recv in more than half of them (a binomial test, corrected for the
        number of pairs), and the waits are at least ``min_share`` of the steps' time.

    Why it costs time
        The receiver does nothing, and whoever needs what it makes of the message waits too.

    What to do
        Post the recv later or asynchronously, behind work that does not need the message;
        let the sender send as soon as the data is there, before other work.

    Blind spots
        A sender that is late because it waited elsewhere itself is not blamed: look at the
        one it waited for. In a pipeline some waiting is the schedule's, see pipeline-bubble.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_share: float = 0.05

    def check(self, trace: Trace) -> Iterator[Finding]:
        """One finding per sender and receiver."""
        rows = sent(trace, self.min_operations)
        limits = self.min_operations, self.min_share
        for late in systematic(rows, rows["op"] == "send", ["receiver", "sender"], trace, limits):
            yield self._finding(late)

    def _finding(self, late: Awaited) -> Finding:
        receiver, sender = late.key
        return Finding(
            rule=self.name(),
            summary=(
                f"rank {receiver} waits for rank {sender}'s send in {len(late.waits)} of "
                f"{late.operations} messages, {ms(late.median_ns)} each: {ms(late.cost_ns)} in all"
            ),
            ranks=(sender,),
            streams=late.streams,
            start_ns=int(late.waits["start_ns"].min()),
            end_ns=int(late.waits["end_ns"].max()),
            cost_ns=late.cost_ns,
            evidence=(
                Evidence(
                    "messages whose send came last",
                    len(late.waits),
                    "messages",
                    late.operations / 2,
                ),
                Evidence("chance of that, corrected", late.p_value, "probability", 0.05),
                Evidence("median wait", late.median_ns, "ns"),
            ),
            ruled_out=(
                "clock error: only waits above three times the clocks' error are counted",
                "knock-on: lateness that the sender caught by waiting elsewhere is not counted",
            ),
            advice=(
                f"let rank {sender} send as soon as the data is there, and rank {receiver} do "
                "work that does not need it before it waits"
            ),
            confidence="high" if late.p_value < 1e-3 else "medium",
        )

    @staticmethod
    def bad() -> Trace:
        """Twelve recvs, each posted 3 ms before its send."""
        return _run(send_at=4000, recv_at=1000)

    @staticmethod
    def good() -> Trace:
        """Twelve sends, each 3 ms before its recv."""
        return _run(send_at=1000, recv_at=4000)


def _run(send_at: float, recv_at: float) -> Trace:
    run = Tiny(ranks=2)
    for start in range(0, 120_000, 10_000):
        run.collective(0, "send", start + send_at, 6000 - send_at, size=1 << 26, peer=1)
        run.collective(1, "recv", start + recv_at, 6000 - recv_at, size=1 << 26, peer=0)
    return run.trace()
