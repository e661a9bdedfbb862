"""How much more slowly operations run between hosts than within one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.comms import members
from commtrace.diagnosis import CannotLook
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.bandwidth import served
from commtrace.units import rate

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["far_slower_between_hosts"]

_FAR = 20  # times as fast: more than any NVLink's advantage over an adapter for each GPU
_LARGE_BYTES = 1_000_000  # of smaller ones a latency takes most of the time


def far_slower_between_hosts(run: Measures, op: str) -> str:
    """Where to look, too, if an operation is that slow between hosts; else empty."""
    try:
        known = served(run)
    except CannotLook:
        return ""
    known = known.take((known.ints("size_bytes") >= _LARGE_BYTES) & known.flags("exact"))
    host = hosts(run)

    def on(group: str) -> set[str | None]:
        return {host.get(rank) for rank in members(group)}

    groups, speed = known.coded("communicator"), known.floats("busbw_gb_s")
    several = groups.where(lambda group: len(on(group)) > 1 and None not in on(group))
    alone = groups.where(lambda group: len(on(group)) == 1 and None not in on(group))
    between = speed[several & known.coded("op").being(op) & ~np.isnan(speed)]
    within = speed[alone & ~np.isnan(speed)]
    if not (between.size and within.size):
        return ""
    slow, fast = float(np.median(between)), float(np.median(within))
    if fast < _FAR * slow:
        return ""
    return (
        f"; between hosts it runs at {rate(slow)} GB/s, others within a host at {rate(fast)} GB/s: "
        "look at the hosts' network, too"
    )
