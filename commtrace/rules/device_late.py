"""The late rank enqueues in time and computes longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commtrace.diagnosis import DEVICE_CAUSES, Finding
from commtrace.rules._culprit import delays
from commtrace.rules._examples import late_rank
from commtrace.rules._rule import Rule

if TYPE_CHECKING:
    from commtrace.measures import Measures


class DeviceLate(Rule, frozen=True):
    """A late rank's device computes longer than the others' before the collective.

    What it detects
        A straggler (see that rule: at least ``min_step_share`` of the steps' time) most of whose
        excess is compute or copies. On GPUs the run is replayed with only the device's own work
        typical, and with only the host's: the former saves more. On a CPU the device is the
        operators of the calling thread.

    Why it costs time
        The collective is enqueued in time, but waits on its device for work that the others
        have long finished, and they wait for it.

    What to do
        Compare the work: uneven batches or sequence lengths, an uneven split of the layers.
        With the same work, compare the clocks: a throttled or shared device.

    Blind spots
        Whether it does more work or the same work more slowly: the trace has no clock rates.
    """

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per straggler whose device was busy."""
        who = "late on the device,"
        return delays(self, run, self.min_step_share, "collective", who=who, causes=DEVICE_CAUSES)

    @staticmethod
    def bad() -> Measures:
        """Rank 1 enqueues in time and computes 4 ms longer."""
        return late_rank(stall_us=0)

    @staticmethod
    def good() -> Measures:
        """Rank 1's host enqueues 4 ms late; its device has nothing to do."""
        return late_rank(stall_us=4000)
