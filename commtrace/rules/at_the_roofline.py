"""Operations that run as fast as their link allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import grouped
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.metrics.run.bandwidth import served, streams
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._rule import Rule
from commtrace.synthetic import on_links
from commtrace.topology import uniform_link
from commtrace.units import counted, mb, percent

if TYPE_CHECKING:
    from commtrace.expect import Link
    from commtrace.measures import Measures
    from commtrace.table import Rows


class AtTheRoofline(Rule, frozen=True):
    """Large operations use all the bandwidth that their link usually gives.

    What it detects
        Good news: ``min_count`` operations or more of one kind, of at least ``min_bytes``,
        whose bus bandwidth, without the waiting for the last rank, is at least ``min_share``
        of what the recorded link usually reaches, and that take ``min_step_share`` of the step.

    Why it costs time
        None of this time can be saved: the link is the limit.

    What to do
        Nothing to tune here. To be faster still, send fewer bytes (accumulate gradients, compress,
        shard) or hide the operations behind compute.

    Blind spots
        Skipped without a recorded topology, where the GPUs of the machine are not all
        linked alike, or across machines.
    """

    of_single_events: ClassVar[bool] = True
    good_news: ClassVar[bool] = True

    min_bytes: int = 16_000_000
    min_count: int = 10
    min_share: float = 0.8
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per operation and group."""
        link = uniform_link(run)
        if link is None:
            raise CannotLook("needs a recorded topology with one kind of link between all GPUs")
        known = served(run)
        large = known.ints("size_bytes") >= self.min_bytes
        known = known.take(large & ~np.isnan(known.floats("busbw_gb_s")))
        found = []
        for some in map(known.take, grouped(known.coded("communicator"), known.coded("op"))):
            busbw = median(some.floats("busbw_gb_s"))
            possible = busbw <= link.peak_gb_s * median(some.floats("factor").clip(min=1))
            if not possible or busbw < self.min_share * link.usual_gb_s:
                continue
            if worth_reporting(some.ints("transfer_ns").sum(), run, self.min_step_share):
                found.append((len(some), some))
        for some in enough(found, self.min_count, "operation", "of one kind in one group"):
            yield self._finding(some, link, run)

    def _finding(self, some: Rows, link: Link, run: Measures) -> Finding:
        busbw = median(some.floats("busbw_gb_s"))
        op, size_bytes = some.coded("op").at(0), median(some.ints("size_bytes"))
        return self.finding(
            some,
            summary=(
                f"{counted(len(some), str(op))} of {mb(size_bytes)} "
                f"ran at {busbw:.3g} GB/s bus bandwidth, {percent(busbw, link.usual_gb_s)} of what "
                f"{link.name} usually reaches: the link is the limit"
            ),
            streams=streams(some, run),
            cost_ns=0,
            evidence=(
                Evidence("bus bandwidth", busbw, "GB/s", self.min_share * link.usual_gb_s),
                Evidence(f"{link.name} usually reaches", link.usual_gb_s, "GB/s"),
            ),
            ruled_out=("skew: only the time after the last rank's arrival counts",),
            advice="send fewer bytes or overlap them with compute; tuning gains nothing",
            confidence="high" if some.flags("exact").all() else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """256 MB all_reduces at 430 GB/s over NVLink4."""
        return on_links(1040)

    @staticmethod
    def good() -> Measures:
        """The same at 210 GB/s."""
        return on_links(2130)
