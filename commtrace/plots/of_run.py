"""The pictures of one run: what a Run's ``plot`` is. matplotlib is loaded with the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commtrace.diagnosis import Finding
    from commtrace.measures import Measures

__all__ = ["NAMES", "Plot"]

NAMES = (
    *("breakdown", "timeline", "bandwidth", "overlap", "copies"),
    *("waits", "caused_waits", "critical_path", "durations"),
)
"""The pictures there are: the methods of Plot."""


@dataclass(frozen=True)
class Plot:
    """Pictures of a run. Each takes ``ax=`` and returns the matplotlib Axes it drew on."""

    _measures: Measures = field(repr=False)

    def breakdown(self, finding: Finding | None = None, *, ax: Axes | None = None) -> Axes:
        """Where each device's time went, in ms; a finding's ranks are in bold."""
        from commtrace.metrics.rank.devices import devices
        from commtrace.plots.breakdown_plot import breakdown

        return breakdown(devices(self._measures).frame(), ranks=_ranks(finding), ax=ax)

    def timeline(
        self,
        finding: Finding | None = None,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """What ran when on each stream, in ms from the start, or within a window.

        Waiting is hatched, apart from transfer. A finding is shaded, and the window is its time
        with a tenth more on either side, unless one is given.
        """
        from commtrace.metrics.run.timeline_events import timeline_events
        from commtrace.plots.timeline_plot import timeline

        if finding is not None:
            around = (finding.end_ns - finding.start_ns) // 10
            start_ns = finding.start_ns - around if start_ns is None else start_ns
            end_ns = finding.end_ns + around if end_ns is None else end_ns
        events = timeline_events(self._measures).frame()
        return timeline(events, start_ns=start_ns, end_ns=end_ns, finding=finding, ax=ax)

    def bandwidth(self, *, ax: Axes | None = None) -> Axes:
        """Bus bandwidth against size, both logarithmic."""
        from commtrace.metrics.run.collectives import collectives
        from commtrace.plots.bandwidth_plot import bandwidth

        return bandwidth(collectives(self._measures).frame(), ax=ax)

    def overlap(self, rank: int | None = None, *, ax: Axes | None = None) -> Axes:
        """How long each two streams of a rank, by default the lowest, were busy at once, in ms."""
        from commtrace.metrics.rank.streams import stream_overlap
        from commtrace.plots.heat_plots import overlap_matrix

        lowest = min(self._measures.rows("ranks").ints("rank").tolist(), default=0)
        overlaps = stream_overlap(self._measures).frame()
        return overlap_matrix(overlaps, lowest if rank is None else rank, ax=ax)

    def copies(self, *, ax: Axes | None = None) -> Axes:
        """Median bandwidth of the copies from each device to each other, in GB/s."""
        from commtrace.metrics.rank.copies import copies
        from commtrace.plots.heat_plots import copy_matrix

        return copy_matrix(copies(self._measures).frame(), ax=ax)

    def waits(self, finding: Finding | None = None, *, ax: Axes | None = None) -> Axes:
        """How long each rank waited in each step, in ms; a finding's ranks are outlined."""
        return self._waits("wait_ns", finding, ax)

    def caused_waits(self, finding: Finding | None = None, *, ax: Axes | None = None) -> Axes:
        """How long the others waited for each rank in each step, in ms."""
        return self._waits("caused_wait_ns", finding, ax)

    def critical_path(self, *, ax: Axes | None = None) -> Axes:
        """What is on the critical path of each step, in ms."""
        from commtrace.causal.critical_path import CRITICAL_PATH
        from commtrace.causal.steps import path_of
        from commtrace.plots.critical_path_plot import critical_path

        path = path_of(self._measures) or CRITICAL_PATH.of_dicts([])
        return critical_path(path.frame(), ax=ax)

    def durations(self, *, ax: Axes | None = None) -> Axes:
        """How long the calls of each operation took, as a distribution."""
        from commtrace.plots.duration_plot import durations

        return durations(
            self._measures.rows("collectives").only("op", "duration_ns").frame(), ax=ax
        )

    def _waits(self, column: str, finding: Finding | None, ax: Axes | None) -> Axes:
        from commtrace.metrics.run.step_waits import step_waits
        from commtrace.plots.heat_plots import wait_map

        waits = step_waits(self._measures).frame()
        return wait_map(waits, column, ranks=_ranks(finding), ax=ax)


def _ranks(finding: Finding | None) -> tuple[int, ...]:
    return () if finding is None else finding.ranks
