"""Ways around a slow pair of GPUs: over a third one, or through the host's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct

from commtrace.intervals import NEVER, Intervals, intersect, total, union
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.peer_copies import DevicePair
from commtrace.quantiles import median
from commtrace.topology import code, device_of, host_link, link, names

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Detour", "Hops", "detours"]

HOST_BYTES = 1_000_000  # copies smaller than this do not tell what a link carries


class Detour(Struct, frozen=True):
    """One way around. Bandwidths are what is left beside the copies that use it already.

    ``gb_s`` is reached in chunks, the hops at work at the same time; ``whole_gb_s`` if each
    tensor arrives as a whole before it goes on.
    """

    over: str
    gb_s: float
    whole_gb_s: float
    busy_pct: float
    known_from: str
    confidence: Literal["high", "medium", "low"]


class Hops:
    """What each hop between two GPUs carries, in GB/s: measured, else as recorded."""

    def __init__(self, known: list[DevicePair], run: Measures) -> None:
        self.run = run
        self.measured = {(pair.source, pair.destination): pair for pair in known}
        recorded = {device for name in names(run) if (device := device_of(name, run))}
        self.devices = sorted(recorded.union(*self.measured) if self.measured else recorded)
        each = [
            pair.gb_s / count
            for ends, pair in self.measured.items()
            if (count := self._nvlinks(*ends))
        ]
        self.nvlink_gb_s = median(each) if each else 0.0

    def gb_s(self, source: str, destination: str) -> float:
        """A hop's bandwidth; 0 where nothing is known of it."""
        if pair := self.measured.get((source, destination)):
            return pair.gb_s
        if figures := link(source, destination, self.run):
            return figures.usual_gb_s
        return self._nvlinks(source, destination) * self.nvlink_gb_s

    def unknown(self, source: str, destination: str) -> bool:
        """Whether neither a copy nor the topology tells anything of a hop."""
        measured = (source, destination) in self.measured
        return not measured and code(source, destination, self.run) is None

    def known_from(self, source: str, via: str, destination: str) -> tuple[str, bool]:
        """Where both hops' bandwidths come from, and whether it is from copies of this trace."""
        both = {(source, via), (via, destination)} <= self.measured.keys()
        return ("both hops measured here" if both else "by the recorded links"), both

    def busy(self, source: str, destination: str) -> Intervals:
        """When copies of this trace used a hop."""
        pair = self.measured.get((source, destination))
        return pair.busy if pair else NEVER

    def _nvlinks(self, source: str, destination: str) -> int:
        link = code(source, destination, self.run) or ""
        return int(link[2:]) if link.startswith("NV") and link[2:].isdigit() else 0


def detours(pair: DevicePair, hops: Hops) -> Iterator[Detour]:
    """Every way around that something is known of, and the one through the host."""
    for via in hops.devices:
        if via in (pair.source, pair.destination):
            continue
        first, second = hops.gb_s(pair.source, via), hops.gb_s(via, pair.destination)
        if first and second:
            busy = _share(pair, hops.busy(pair.source, via), hops.busy(via, pair.destination))
            origin, measured = hops.known_from(pair.source, via, pair.destination)
            yield Detour(
                over=via,
                gb_s=min(first, second) * (1 - busy),
                whole_gb_s=(1 - busy) / (1 / first + 1 / second),
                busy_pct=100 * busy,
                known_from=origin,
                confidence="high" if measured else "medium",
            )
    yield _through_host(pair, hops.run)


def _through_host(pair: DevicePair, run: Measures) -> Detour:
    copies = rows_of_rank(run, "copies", pair.rank)
    size, duration = copies.ints("size_bytes"), copies.ints("duration_ns")
    from_host, to_host = (copies.coded("kind").being(kind) for kind in ("HtoD", "DtoH"))
    rated = copies.coded("memory").being("pinned") & (size >= HOST_BYTES)
    gb_s = size / np.maximum(duration, 1)
    down, up = gb_s[rated & to_host], gb_s[rated & from_host]
    link, is_known = host_link(run)
    confidence: Literal["medium", "low"] = "medium"
    if down.size and up.size:
        rate, known_from = float(min(median(down), median(up))), "as pinned copies here"
    elif is_known:
        rate, known_from = link.usual_gb_s, f"as {link.name} usually does"
    else:
        rate, known_from = link.usual_gb_s, f"assuming {link.name}, as it usually does"
        confidence = "low"
    busy = _share(pair, union(*copies.take(from_host | to_host).when()))
    left = float(rate) * (1 - busy)
    return Detour("pinned host memory", left, left / 2, 100 * busy, known_from, confidence)


def _share(pair: DevicePair, *others: Intervals) -> float:
    """The share of the pair's time in which any of the others ran."""
    starts = np.concatenate([start for start, _ in others])
    ends = np.concatenate([end for _, end in others])
    busy = pair.busy
    return total(intersect(busy, union(starts, ends))) / max(total(busy), 1)
