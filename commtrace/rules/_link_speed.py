"""Which link a group's operations use, and how fast these should be over it at least."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64
from commtrace.comms import EVEN, members
from commtrace.expect import Link, nccl_latency_ns, pcie
from commtrace.metrics.run.bandwidth import hidden
from commtrace.metrics.run.group_hosts import host_count
from commtrace.quantiles import median
from commtrace.topology import gpu_name, linked_alike, uniform_link, usual_link

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["ALONE", "LinkSpeed", "link_speed"]

ALONE = 0.1  # of an operation's time: less of it under compute takes no bandwidth from it


class LinkSpeed(Struct, frozen=True):
    """Over which link operations go, and with what bandwidth at least, whatever runs beside them.

    Where next to nothing does it is ``half_gb_s`` for ranks that are linked ``alike``: the share of
    what the link usually reaches. With the ``gpu`` that has such a link by its name, its ``pcie``,
    and the latency that a link assumed so is given besides.
    """

    link: Link
    least_gb_s: float
    half_gb_s: float
    alike: bool = True
    latency_ns: float = 0.0
    gpu: str = ""
    pcie: Link | None = None

    @property
    def most_gb_s(self) -> float:
        """Below which operations may be slow."""
        return self.half_gb_s if self.alike else self.least_gb_s

    def expected_ns(self, some: Rows) -> Float64:
        """What its operations usually take."""
        wire_ns = some.ints("size_bytes") * some.floats("factor") / self.link.usual_gb_s
        return np.asarray(wire_ns + self.latency_ns)

    def is_slow(self, some: Rows, run: Measures) -> bool:
        """Whether these, all of one kind in one group, take too long."""
        busbw = median(some.floats("busbw_gb_s"))
        if busbw < self.least_gb_s:
            return True
        return bool(busbw < self.most_gb_s and median(hidden(some, run)) < ALONE)

    def is_fast(self, some: Rows) -> bool:
        """Whether these show that the link is there."""
        return bool(median(some.floats("busbw_gb_s")) >= self.half_gb_s)

    def assumed(self, busbw: float) -> str:
        """That the link is assumed, and why; empty if it is recorded."""
        if self.pcie is None:
            return ""
        less = f", and less than the {self.pcie.usual_gb_s:.3g} GB/s of {self.pcie.name}"
        return f" (assumed of {self.gpu}){less if busbw < self.pcie.usual_gb_s else ''}"

    def where_to_look(self, busbw: float) -> str:
        """What may have chosen the slow way, and where to see whether what is assumed is so."""
        switched = "whether peer access is switched off"
        if self.pcie is None:
            return switched
        if busbw >= self.pcie.usual_gb_s:
            return (
                "whether the environment sets others (NCCL_ALGO, NCCL_PROTO, NCCL_MAX_NCHANNELS, "
                "NCCL_MAX_CTAS), and with nvidia-smi nvlink -s whether all NVLinks are up"
            )
        return (
            f"{switched} (NCCL_P2P_DISABLE, ACS or IOMMU, a container), and with nvidia-smi topo "
            "-m and nvidia-smi nvlink -s whether the NVLinks are there and up"
        )


def link_speed(run: Measures, some: Rows, max_share: float) -> LinkSpeed | None:
    """What the link of operations of one kind in one group is; None if nothing tells.

    As recorded, or as is usual of such GPUs on one host: less than their PCIe gives is no NVLink's,
    and less than that share of what all their NVLinks do is too little where all are linked alike.
    """
    if recorded := uniform_link(run):
        least = max_share * recorded.usual_gb_s
        return LinkSpeed(recorded, least, least)
    group, op, gpu = some.coded("communicator").at(0), str(some.coded("op").at(0)), gpu_name(run)
    ranks = len(members(group))
    nvlink = usual_link(run, one_host=op in EVEN and host_count(run, group) == 1)
    card = pcie(gpu)
    if nvlink is None or card is None:
        return None
    latency = nccl_latency_ns(op, ranks, protocol="Simple")
    moved = median(some.ints("size_bytes") * some.floats("factor"))
    half = max_share * moved / (moved / nvlink.usual_gb_s + latency)
    alike = linked_alike(gpu, ranks)
    return LinkSpeed(nvlink, min(half, card.usual_gb_s), half, alike, latency, gpu, card)
