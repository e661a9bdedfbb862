"""A sender waits for its receiver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.diagnosis import Finding
from commtrace.metrics.run.joined_rows import paired
from commtrace.rules._culprit import delays
from commtrace.rules._examples import message
from commtrace.rules._rule import Rule

if TYPE_CHECKING:
    from commtrace.measures import Measures


class LateReceiver(Rule, frozen=True):
    """One rank's recvs come later than the sends that wait for them.

    What it detects
        A rank that others wait for mostly in their sends, which cannot go on without its recvs,
        and whose own work before these, made as long as is typical of the others, saves at least
        ``min_step_share`` of the steps' time when the run is replayed (see straggler).

    Why it costs time
        A large message is moved only when both sides are there: the sender is stalled.

    What to do
        Post the recv before other work (``irecv``), or send asynchronously. A pipeline's stage that
        computes more than the others needs fewer layers: see straggler.

    Blind spots
        A message that is buffered lets its sender go on: it waits for nobody and is not
        counted. A receiver that is late because it waited elsewhere is not blamed. In a
        pipeline some waiting is the schedule's, see pipeline-bubble.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication", "pipeline-bubble")

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per receiver, or per set of receivers that are late together."""
        paired(run)
        yield from delays(self, run, self.min_step_share, "recv", who="receiving")

    @staticmethod
    def bad() -> Measures:
        """Twelve sends, each 3 ms before its recv."""
        return message(send_at_us=1000, recv_at_us=4000)

    @staticmethod
    def good() -> Measures:
        """Twelve recvs, each posted 3 ms before its send."""
        return message(send_at_us=4000, recv_at_us=1000)
