"""How much more slowly operations run between hosts than within one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, codes, first_rows
from commtrace.comms import EVEN, POINT_TO_POINT, members
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.bandwidth import on_gpus, served
from commtrace.metrics.run.link_times import between_two
from commtrace.quantiles import median
from commtrace.rules._latency import by_constants_ns
from commtrace.table import Rows
from commtrace.units import rate

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "FAR",
    "BetweenHosts",
    "as_sockets_gb_s",
    "between_hosts",
    "large_operations",
    "to_compare",
]

FAR = 20  # times as fast: more than any NVLink's advantage over an adapter for each GPU
_USUAL = 10  # times: DGX have 230 GB/s and 25 of A100, 360 to 450 and 50 of H100
_SOCKETS_GB_S = 5.0  # 40 Gbit/s: no adapter for RDMA beside such GPUs gives so little
_SOCKETS = (
    ", and see with NCCL_DEBUG=INFO whether it goes over the network meant for it: sockets over "
    "Ethernet (NET/Socket) are as slow"
)
_LARGE_BYTES = 1_000_000  # of smaller ones a latency takes most of the time


class BetweenHosts(Struct, frozen=True, eq=False, weakref=True):
    """The ``transfers`` of GPUs between hosts, at so many GB/s, and what those within them have.

    ``usual_ns`` is what each would take with what an adapter for each GPU usually gives, NCCL's
    latency included; ``most_ns`` what it would with the least that one should.
    """

    transfers: Rows
    between_gb_s: float
    within_gb_s: float
    usual_ns: Float64
    most_ns: Float64

    @property
    def less_ns(self) -> Float64:
        """What each would take less."""
        return np.asarray((self.transfers.ints("transfer_ns") - self.usual_ns).clip(min=0))

    @property
    def too_slow_ns(self) -> Float64:
        """What each would take less if it were just not too slow."""
        return np.asarray((self.transfers.ints("transfer_ns") - self.most_ns).clip(min=0))


class _Placed(Struct, frozen=True, eq=False):
    """Operations, and whether each is within one host, or between several."""

    known: Rows
    within: Bool
    between: Bool


@measure
def between_hosts(run: Measures, min_count: int) -> BetweenHosts | None:
    """What GPUs move between hosts, if it is that slow; None else, and where that is unknown.

    All that moves as many bytes from each rank: no busy one is the reason.
    """
    its = _placed(run)
    if its is None:
        return None
    op = its.known.coded("op")
    even = op.where((*EVEN, *POINT_TO_POINT).__contains__) & on_gpus(its.known, run)
    between, within = its.known.take(its.between & even), its.known.take(its.within & even)
    if min(len(between), len(within)) < max(min_count, 1):
        return None
    slow, fast = (median(some.floats("busbw_gb_s")) for some in (between, within))
    within_ns = between.ints("size_bytes") * between.floats("factor") / fast
    latency_ns = _latency_ns(between, run)
    most_ns = FAR * within_ns + latency_ns
    if median(between.ints("transfer_ns") / most_ns) < 1:
        return None
    return BetweenHosts(between, slow, fast, _USUAL * within_ns + latency_ns, most_ns)


def _latency_ns(between: Rows, run: Measures) -> Float64:
    """NCCL's latency of each of these."""
    op, groups = between.coded("op"), between.coded("communicator")
    kind = codes(op, groups)
    first = first_rows(kind)
    its = zip(op.take(first).decoded(), groups.take(first).decoded(), strict=True)
    each = [by_constants_ns(run, str(name), group, "Simple") for name, group in its]
    return np.asarray(each, np.float64)[kind]


def to_compare(run: Measures, op: str) -> str:
    """Where to look, too, if links may be slow: far slower ones between hosts, or all.

    Whether all are as slow no trace tells, so that it says what the operation has of GPUs' links.
    """
    its = _placed(run)
    if its is None:
        return ""
    speed, mine = its.known.floats("busbw_gb_s"), its.known.coded("op").being(op)
    between, within = speed[its.between & mine], speed[its.within]
    if between.size and within.size:
        slow, fast = median(between), median(within)
        if fast >= FAR * slow:
            return (
                f"; between hosts it runs at {rate(slow)} GB/s, others within a host at "
                f"{rate(fast)} GB/s: look at the hosts' network, too"
            )
    on_links = speed[mine & on_gpus(its.known, run)]
    if not on_links.size:
        return ""
    usual = rate(median(on_links))
    said = f"; {op} has {usual} GB/s (busbw): compare with nccl-tests on these GPUs"
    return said + (_SOCKETS if as_sockets_gb_s(run, op) else "")


def as_sockets_gb_s(run: Measures, op: str) -> float | None:
    """What an operation of GPUs has between hosts, if sockets over Ethernet are as slow."""
    its = _placed(run)
    if its is None:
        return None
    mine = its.between & its.known.coded("op").being(op) & on_gpus(its.known, run)
    speed = its.known.floats("busbw_gb_s")[mine]
    return median(speed) if speed.size and median(speed) < _SOCKETS_GB_S else None


def large_operations(run: Measures) -> Rows | None:
    """Those whose bus bandwidth is known and that latency hardly slows; None if none is served."""
    try:
        known = served(run)
    except CannotLook:
        return None
    known = known.take((known.ints("size_bytes") >= _LARGE_BYTES) & known.flags("exact"))
    return known.take(~np.isnan(known.floats("busbw_gb_s")))


def _placed(run: Measures) -> _Placed | None:
    """The large operations, of which it is known where; None without any."""
    if (known := large_operations(run)) is None:
        return None
    host, groups = hosts(run), known.coded("communicator")

    def on(group: str) -> set[str | None]:
        return {host.get(rank) for rank in members(group)}

    several = groups.where(lambda group: len(on(group)) > 1 and None not in on(group))
    alone = groups.where(lambda group: len(on(group)) == 1 and None not in on(group))
    messages = known.coded("op").where(POINT_TO_POINT.__contains__)
    if messages.any():  # of two ranks of their group
        two = between_two(run)
        near = np.isin(known.ints("operation"), two.ints("operation")[~two.flags("across")])
        near &= messages & several
        several, alone = several & ~near, alone | near
    return _Placed(known, alone, several)
