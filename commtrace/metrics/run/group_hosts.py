"""On how many hosts a process group is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.comms import members
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.rank.hosts import hosts

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["host_count"]


def host_count(run: Measures, communicator: str | None) -> int | None:
    """On how many hosts a process group's ranks are; None where that is unknown.

    Where no host has a name, ranks whose GPUs all have other numbers are taken to share one.
    """
    on, ranks = hosts(run), set(members(communicator or ""))
    names = {on.get(rank) for rank in ranks}
    if ranks and None not in names:
        return len(names)
    its = devices(run)
    places = zip(its.ints("rank").tolist(), its.coded("device").decoded(), strict=True)
    gpus = [device for rank, device in places if rank in ranks and device != "cpu"]
    alone = not on and 1 < len(ranks) == len(gpus) == len(set(gpus))
    return 1 if alone else None
