"""The late rank enqueues late, with nothing to do on its device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.diagnosis import HOST_CAUSES, Finding
from commtrace.rules._culprit import OF_HOST, delays
from commtrace.rules._examples import late_rank
from commtrace.rules._rule import Rule

if TYPE_CHECKING:
    from commtrace.measures import Measures


class HostLate(Rule, frozen=True):
    """A late rank's host enqueues the collective late while its device is idle.

    What it detects
        A straggler (see that rule: at least ``min_step_share`` of the steps' time) most of whose
        excess is time in which its host does not enqueue. On GPUs the run is replayed with only
        the host's own work typical, and with only the device's: the former saves more. On a CPU
        it is time without operators, or in a data loader, a checkpoint or the garbage collector.

    Why it costs time
        Every other rank, and its device, waits for a host that does something else.

    What to do
        Prefetch the data, drop host synchronisation (``item()``, ``print``), keep garbage
        collection out of the steps, give the process its own cores.

    Blind spots
        What the host did instead: only recordings of commtrace's tell at which line it was, and
        traces with stacks, of GPUs, in which function. Of a CPU only the outermost operators are
        kept, and only where work runs on it.
    """

    explains: ClassVar[tuple[str, ...]] = OF_HOST

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per straggler whose device was idle."""
        who = "late on the host,"
        return delays(self, run, self.min_step_share, "collective", who=who, causes=HOST_CAUSES)

    @staticmethod
    def bad() -> Measures:
        """Rank 1's host enqueues everything 4 ms late; its device has nothing to do."""
        return late_rank(stall_us=4000)

    @staticmethod
    def good() -> Measures:
        """Rank 1 enqueues in time and computes 4 ms longer."""
        return late_rank(stall_us=0)
