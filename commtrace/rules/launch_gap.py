"""A GPU stands idle between kernels because the host launches them too slowly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commtrace.rules._common import ms, step_time_ns, worth_saying
from commtrace.rules._rule import Rule
from commtrace.rules._timeline import Timeline, timelines
from commtrace.rules._tiny import BASE_NS, Tiny
from commtrace.schema import Evidence, Finding

if TYPE_CHECKING:
    from commtrace.trace import Trace


@dataclass(frozen=True)
class LaunchGap(Rule):
    """Many small gaps between kernels: the host cannot launch as fast as the GPU runs.

    What it detects
        At least ``min_gaps`` gaps of a device, each up to ``max_gap_us`` µs long, in which it
        ran nothing and the event behind the gap was launched only when the device had
        already run dry; half of the gaps are longer than half of what it runs, and together
        they are at least ``min_share`` of the steps' time.

    Why it costs time
        Launching a kernel takes the host some microseconds, an operator tens. Kernels shorter
        than that leave the GPU waiting for the next.

    What to do
        Fuse (``torch.compile``), capture CUDA graphs, larger batches, foreach optimizers.

    Blind spots
        The profiler slows the host itself: without it the gaps are smaller. Longer gaps are
        stalls of the host and not counted. Kernels of a captured graph share one launch.
    """

    min_gaps: int = 100
    max_gap_us: float = 1000.0
    min_share: float = 0.05

    def check(self, trace: Trace) -> Iterator[Finding]:
        """At most one finding, with the worst of the devices that have the fault."""
        waiting = [(line, self._gaps(line)) for line in timelines(trace)]
        found = [
            (line, gaps)
            for line, gaps in waiting
            if gaps.sum() >= self.min_gaps
            and np.median(line.idle_ns[gaps]) > np.median(line.end_ns - line.start_ns)
            and worth_saying(int(line.idle_ns[gaps].sum()), trace, self.min_share)
        ]
        if found:
            line, gaps = max(found, key=lambda one: int(one[0].idle_ns[one[1]].sum()))
            yield self._finding(line, gaps, tuple(sorted({one.rank for one, _ in found})), trace)

    def _gaps(self, line: Timeline) -> npt.NDArray[np.bool_]:
        """Which events have a short gap before them because they were launched late."""
        behind_copy = np.concatenate(([False], line.with_host[:-1]))
        return line.starved() & ~behind_copy & (line.idle_ns <= 1e3 * self.max_gap_us)

    def _finding(
        self,
        line: Timeline,
        found: npt.NDArray[np.bool_],
        ranks: tuple[int, ...],
        trace: Trace,
    ) -> Finding:
        gaps = line.idle_ns[found]
        cost = int(gaps.sum())
        share = 100 * cost / step_time_ns(trace)
        at = np.flatnonzero(found)
        return Finding(
            rule=self.name(),
            summary=(
                f"rank {line.rank}'s {line.device} waits for a launch {len(gaps)} times, "
                f"{ms(float(np.median(gaps)))} each: {ms(cost)}"
            ),
            ranks=ranks,
            streams=tuple(sorted({int(stream) for stream in line.stream[found]})),
            start_ns=int(line.start_ns[at[0]] - line.idle_ns[at[0]]),
            end_ns=int(line.start_ns[at[-1]]),
            cost_ns=cost,
            evidence=(
                Evidence("gaps behind a late launch", len(gaps), "gaps", self.min_gaps),
                Evidence("median gap", float(np.median(gaps)), "ns"),
                Evidence("median kernel or copy", _median(line.end_ns - line.start_ns), "ns"),
                Evidence("share of the steps' time", share, "%", 100 * self.min_share),
            ),
            ruled_out=(
                "waiting for another stream: only what was not launched yet is counted",
                "a host that a copy blocks: gaps behind a copy from or to it are not counted",
                "CUDA graphs: what one launch starts together is not late",
            ),
            advice="fuse kernels (torch.compile), capture CUDA graphs, or give each more to do",
            confidence="medium",
        )

    @staticmethod
    def bad() -> Trace:
        """200 kernels of 10 µs, one launched every 30 µs."""
        return _run(every_us=30)

    @staticmethod
    def good() -> Trace:
        """The same, one launched every 8 µs."""
        return _run(every_us=8)


def _run(every_us: float) -> Trace:
    run = Tiny()
    run.step(0, 0, 0, 205 * max(every_us, 10))
    start = 0.0
    for i in range(200):
        launch = i * every_us
        start = max(start + 10, launch + 5)
        run.kernel(0, start, 10, launch_ns=BASE_NS + round(launch * 1e3))
    return run.trace()


def _median(times: npt.NDArray[np.int64]) -> float:
    return float(np.median(times))
