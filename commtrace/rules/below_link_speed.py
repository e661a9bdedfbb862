"""Operations that reach a fraction of what their link gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, grouped
from commtrace.causal.delays import felt_ns
from commtrace.causal.savings import Saving, of_transfers
from commtrace.comms import EVEN
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.expect import Link, pcie
from commtrace.metrics.run.bandwidth import hidden, on_gpus, served, streams
from commtrace.metrics.run.group_hosts import host_count
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import on_links
from commtrace.topology import gpu_name, uniform_link, usual_link
from commtrace.units import counted, mb, ms, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows


class _Way(Struct, frozen=True):
    """Over which link a group communicates, and with what bandwidth at least.

    With the ``gpu`` that has such a link by its name, and its ``pcie``, where it is assumed.
    """

    link: Link
    least_gb_s: float
    gpu: str = ""
    pcie: Link | None = None

    @property
    def assumed(self) -> str:
        """That the link is assumed, and why; empty if it is recorded."""
        if self.pcie is None:
            return ""
        return (
            f" (assumed of {self.gpu}), and less than the {self.pcie.usual_gb_s:.3g} GB/s of "
            f"{self.pcie.name}"
        )

    @property
    def where_to_look(self) -> str:
        """Where to see whether what is assumed is so."""
        if self.pcie is None:
            return ""
        return (
            " (NCCL_P2P_DISABLE, ACS or IOMMU, a container), and with nvidia-smi topo -m and "
            "nvidia-smi nvlink -s whether the NVLinks are there and up"
        )


class BelowLinkSpeed(Rule, frozen=True):
    """Large operations reach far less bandwidth than their link usually gives.

    What it detects
        ``min_count`` operations or more of one kind, of at least ``min_bytes``, recorded on every
        rank, whose bus bandwidth after the last rank's arrival is under ``max_share`` of what the
        recorded link usually reaches, where that is worth ``min_step_share`` of the step; what
        compute hides does not count. Without a recorded topology, of a group on one host whose
        GPUs have NVLinks by their name, and then below what their PCIe usually reaches, too: the
        finding says that it assumes NVLinks. Then only all_reduces, all_gathers and reduce_scatters
        count: what else is slow may be so for a busy rank, or between two GPUs without a link.

    Why it costs time
        The bytes take a slower way than they could: through the host instead of NVLink or
        peer access, over fewer channels, or with a protocol that halves the bandwidth.

    What to do
        See what NCCL chose (``NCCL_DEBUG=INFO``: ``via P2P`` or ``via SHM``, the channels); look
        for NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_MAX_NCHANNELS in the environment, and for
        access control (ACS), an IOMMU or a container that forbids peer access. ``nvidia-smi topo
        -m`` shows whether the GPUs have NVLinks, and ``nvidia-smi nvlink -s`` whether these are up.

    Blind spots
        Skipped where the GPUs of the machine are recorded not to be all linked alike, across
        machines, and without a recorded topology of GPUs that have no NVLinks by their name, as
        those on PCIe cards, or too few between two of them, as AMD's. What other jobs send is not
        in the trace.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_bytes: int = 16_000_000
    min_count: int = 10
    max_share: float = 0.5
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per operation and group."""
        several_ranks(run)
        known = served(run)
        large = known.flags("exact") & (known.ints("size_bytes") >= self.min_bytes)
        known = known.take(large & ~np.isnan(known.floats("factor")) & on_gpus(known, run))
        looked = uniform_link(run) is not None
        found = []
        for some in map(known.take, grouped(known.coded("communicator"), known.coded("op"))):
            way = self._way(run, some)
            if way is None:
                continue
            looked = True
            if np.median(some.floats("busbw_gb_s")) < way.least_gb_s:
                expected = some.ints("size_bytes") * some.floats("factor") / way.link.usual_gb_s
                less = (some.ints("transfer_ns") - expected).clip(min=0)
                estimate = felt_ns(some, less, run)
                gain = of_transfers(run, some, less, estimate, self.min_step_share)
                if worth_reporting(gain.cost_ns, run, self.min_step_share):
                    found.append((len(some), (some, expected, gain, way)))
        if not looked:
            raise CannotLook("needs a recorded topology with one kind of link between all GPUs")
        which = "of one kind in one group"
        for slow, expected, gain, way in enough(found, self.min_count, "operation", which):
            yield self._finding(slow, expected, gain, way, run)

    def _way(self, run: Measures, some: Rows) -> _Way | None:
        """What the link of operations of one kind is, as recorded or assumed; None if neither."""
        if recorded := uniform_link(run):
            return _Way(recorded, self.max_share * recorded.usual_gb_s)
        group, op = some.coded("communicator").at(0), str(some.coded("op").at(0))
        one_host = op in EVEN and host_count(run, group) == 1
        gpu = gpu_name(run)
        nvlink, card = usual_link(run, one_host=one_host), pcie(gpu)
        if nvlink is None or card is None:
            return None
        least = min(self.max_share * nvlink.usual_gb_s, card.usual_gb_s)
        return _Way(nvlink, least, gpu, card)

    def _finding(
        self, some: Rows, expected: Float64, gain: Saving, way: _Way, run: Measures
    ) -> Finding:
        busbw, share = (
            float(np.median(its)) for its in (some.floats("busbw_gb_s"), hidden(some, run))
        )
        op, size_bytes = some.coded("op").at(0), float(np.median(some.ints("size_bytes")))
        alone, link = share < 0.1, way.link
        return self.finding(
            some,
            summary=(
                f"{counted(len(some), str(op))} of {mb(size_bytes)} "
                f"reached {busbw:.3g} GB/s bus bandwidth, {percent(busbw, link.usual_gb_s)} of the "
                f"{link.usual_gb_s:.3g} GB/s that {link.name} usually reaches"
                f"{way.assumed}"
            ),
            streams=streams(some, run),
            saving=gain,
            evidence=(
                Evidence("bus bandwidth", busbw, "GB/s", way.least_gb_s),
                Evidence(f"{link.name} usually reaches", link.usual_gb_s, "GB/s"),
                Evidence("of it under compute", 100 * share, "%"),
            ),
            ruled_out=(
                "skew: only the time after the last rank's arrival counts",
                *(("contention: next to no compute ran at the same time",) if alone else ()),
            ),
            advice=(
                "see with NCCL_DEBUG=INFO which transport and channels NCCL chose, and whether "
                f"peer access is switched off{way.where_to_look}; at the usual speed they take "
                f"{ms(float(expected.sum()))}, not {ms(float(some.ints('transfer_ns').sum()))}"
            ),
            confidence="high" if alone and not way.assumed else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """256 MB all_reduces at 130 GB/s over NVLink4."""
        return on_links(3500)

    @staticmethod
    def good() -> Measures:
        """The same at 210 GB/s."""
        return on_links(2130)
