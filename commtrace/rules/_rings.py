"""Rings of messages that cross between hosts more often than they need to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.pair_traffic import pair_traffic

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["detours"]

_MOSTLY = 0.9  # of what a rank sends


def detours(run: Measures) -> str:
    """To order a ring of messages by hosts, where it leaves more of them than it has to.

    A ring through some hosts leaves each once. Empty where there is none, or hosts are unknown.
    """
    on = hosts(run)
    for ring in _rings(run):
        if not set(ring) <= on.keys():
            continue
        hops = sum(
            on[one] != on[after] for one, after in zip(ring, ring[1:] + ring[:1], strict=True)
        )
        needed = len({on[rank] for rank in ring})
        if hops > needed > 1:
            return (
                f"order the ring by hosts: {hops} of its {len(ring)} hops are between hosts, "
                f"{needed} would do; "
            )
    return ""


def _rings(run: Measures) -> list[list[int]]:
    """Ranks that each send to one other, but for little, and all around, in that order."""
    traffic = pair_traffic(run)
    to: dict[int, dict[int, int]] = {}
    columns = (traffic.ints(name).tolist() for name in ("source", "destination", "bytes"))
    for source, destination, size in zip(*columns, strict=True):
        to.setdefault(source, {})[destination] = size
    after = {
        rank: max(sizes, key=sizes.__getitem__)
        for rank, sizes in to.items()
        if max(sizes.values()) >= _MOSTLY * sum(sizes.values())
    }
    rings, seen = [], set[int]()
    for first in sorted(after):
        ring, rank = list[int](), first
        while rank in after and rank not in seen:
            seen.add(rank)
            ring.append(rank)
            rank = after[rank]
        if ring and rank == first:
            rings.append(ring)
    return rings
