"""Operations that reach a fraction of what their link gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import Float64, grouped
from commtrace.causal.delays import felt_ns
from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.metrics.run.bandwidth import hidden, served, streams
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import on_links
from commtrace.topology import uniform_link
from commtrace.units import counted, mb, ms, percent

if TYPE_CHECKING:
    from commtrace.expect import Link
    from commtrace.measures import Measures
    from commtrace.table import Rows


class BelowLinkSpeed(Rule, frozen=True):
    """Large operations reach far less bandwidth than their link usually gives.

    What it detects
        ``min_count`` operations or more of one kind, of at least ``min_bytes``, recorded on every
        rank, whose bus bandwidth after the last rank's arrival is under ``max_share`` of what the
        recorded link usually reaches, where that is worth ``min_step_share`` of the step; what
        compute hides does not count.

    Why it costs time
        The bytes take a slower way than they could: through the host instead of NVLink or
        peer access, over fewer channels, or with a protocol that halves the bandwidth.

    What to do
        See what NCCL chose (``NCCL_DEBUG=INFO``: ``via P2P`` or ``via SHM``, the channels); look
        for NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_MAX_NCHANNELS in the environment, and for
        access control (ACS) or a container that forbids peer access.

    Blind spots
        Skipped without a recorded topology, where the GPUs of the machine are not all
        linked alike, or across machines. What other jobs send is not in the trace.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_bytes: int = 16_000_000
    min_count: int = 10
    max_share: float = 0.5
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per operation and group."""
        several_ranks(run)
        link = uniform_link(run)
        if link is None:
            raise CannotLook("needs a recorded topology with one kind of link between all GPUs")
        known = served(run)
        large = known.flags("exact") & (known.ints("size_bytes") >= self.min_bytes)
        known = known.take(large & ~np.isnan(known.floats("factor")))
        found = []
        for some in map(known.take, grouped(known.coded("communicator"), known.coded("op"))):
            if np.median(some.floats("busbw_gb_s")) < self.max_share * link.usual_gb_s:
                expected = some.ints("size_bytes") * some.floats("factor") / link.usual_gb_s
                less = (some.ints("transfer_ns") - expected).clip(min=0)
                estimate = felt_ns(some, less, run)
                gain = of_transfers(run, some, less, estimate, self.min_step_share)
                if worth_reporting(gain.cost_ns, run, self.min_step_share):
                    found.append((len(some), (some, expected, gain)))
        which = "of one kind in one group"
        for slow, expected, gain in enough(found, self.min_count, "operation", which):
            yield self._finding(slow, expected, gain, link, run)

    def _finding(
        self, some: Rows, expected: Float64, gain: Saving, link: Link, run: Measures
    ) -> Finding:
        busbw, share = (
            float(np.median(its)) for its in (some.floats("busbw_gb_s"), hidden(some, run))
        )
        op, size_bytes = some.coded("op").at(0), float(np.median(some.ints("size_bytes")))
        alone = share < 0.1
        return self.finding(
            some,
            summary=(
                f"{counted(len(some), str(op))} of {mb(size_bytes)} "
                f"reached {busbw:.3g} GB/s bus bandwidth, {percent(busbw, link.usual_gb_s)} of the "
                f"{link.usual_gb_s:.3g} GB/s that {link.name} usually reaches"
            ),
            streams=streams(some, run),
            saving=gain,
            evidence=(
                Evidence("bus bandwidth", busbw, "GB/s", self.max_share * link.usual_gb_s),
                Evidence(f"{link.name} usually reaches", link.usual_gb_s, "GB/s"),
                Evidence("of it under compute", 100 * share, "%"),
            ),
            ruled_out=(
                "skew: only the time after the last rank's arrival counts",
                *(("contention: next to no compute ran at the same time",) if alone else ()),
            ),
            advice=(
                "see with NCCL_DEBUG=INFO which transport and channels NCCL chose, and whether "
                "peer access is switched off; at the usual speed they take "
                f"{ms(float(expected.sum()))}, not {ms(float(some.ints('transfer_ns').sum()))}"
            ),
            confidence="high" if alone else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """256 MB all_reduces at 130 GB/s over NVLink4."""
        return on_links(3500)

    @staticmethod
    def good() -> Measures:
        """The same at 210 GB/s."""
        return on_links(2130)
