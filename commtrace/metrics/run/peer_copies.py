"""Copies between GPUs, pair by pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, grouped, rows_by
from commtrace.diagnosis import too_few
from commtrace.intervals import Intervals, covered, total, union
from commtrace.metrics.rank.hosts import hosts
from commtrace.quantiles import quantile
from commtrace.table import Coded
from commtrace.units import mb

if TYPE_CHECKING:
    from commtrace.diagnosis import CannotLook
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["DevicePair", "pairs", "too_few_copies"]


class DevicePair(Struct, frozen=True, eq=False):
    """The large copies of one process from one GPU to another. ``host`` is empty if unknown.

    ``gb_s`` is the median bandwidth of the copies beside which no other peer copy ran, or,
    without such, of all. ``at_most_gb_s`` is what the way could have carried: the same, but
    without copies alone everything that was copied between GPUs meanwhile.
    ``spread_pct`` is the middle half of those bandwidths, in percent of ``gb_s``.
    """

    host: str
    rank: int
    source: str
    destination: str
    copies: Rows
    alone: int
    gb_s: float
    at_most_gb_s: float
    spread_pct: float

    @property
    def ends(self) -> str:
        """``cuda:0 → cuda:1``."""
        return f"{self.source} → {self.destination}"

    @property
    def size_bytes(self) -> int:
        """All that was moved."""
        return int(self.copies.ints("size_bytes").sum())

    @property
    def busy(self) -> Intervals:
        """When any of its copies ran."""
        return _busy(self.copies)


def pairs(run: Measures, min_bytes: int, min_copies: int) -> list[DevicePair]:
    """Every pair with that many copies of that many bytes, in the order of rank and devices."""
    peer = _peer_copies(run)
    peer = peer.take(peer.ints("size_bytes") != NULL)
    on = hosts(run)
    host = Coded.of([on.get(rank, "") for rank in peer.ints("rank").tolist()])
    return [
        pair
        for name in sorted(host.names)
        for pair in _on_host(name, peer.take(host.being(name)), min_bytes, min_copies)
    ]


def too_few_copies(run: Measures, min_bytes: int, min_copies: int) -> CannotLook:
    """What a claim about pairs lacks where ``pairs`` finds none."""
    peer = _peer_copies(run)
    large = peer.take(peer.ints("size_bytes") >= min_bytes)
    of_pairs = rows_by(*(large.columns[name] for name in ("rank", "source", "destination")))
    most = max(map(len, of_pairs.values()), default=0)  # devices may be unknown
    which = f"of {mb(min_bytes)} or more between two GPUs"
    return too_few(most, "copy", min_copies, which)


def _peer_copies(run: Measures) -> Rows:
    copies = run.rows("copies")
    return copies.take(copies.coded("kind").being("PtoP"))


def _on_host(host: str, peer: Rows, min_bytes: int, min_copies: int) -> list[DevicePair]:
    ends = [peer.coded(name) for name in ("source", "destination")]
    large = (peer.ints("size_bytes") >= min_bytes) & ends[0].known & ends[1].known
    at = np.flatnonzero(large)
    alone = _alone(peer)
    return [
        _pair(host, peer.take(at[mine]), alone[at[mine]], peer)
        for mine in grouped(peer.ints("rank")[at], *(end.take(at) for end in ends))
        if mine.size >= min_copies
    ]


def _pair(host: str, copies: Rows, alone: Bool, peer: Rows) -> DevicePair:
    enough = np.count_nonzero(alone) >= 3
    gb_s = _gb_s(copies)[alone] if enough else _gb_s(copies)
    low, middle, high = (quantile(gb_s, share) for share in (0.25, 0.5, 0.75))
    return DevicePair(
        host=host,
        rank=int(copies.ints("rank")[0]),
        source=str(copies.coded("source").at(0)),
        destination=str(copies.coded("destination").at(0)),
        copies=copies,
        alone=gb_s.size if enough else 0,
        gb_s=float(middle),
        at_most_gb_s=float(middle) if enough else _beside(copies, peer),
        spread_pct=float(100 * (high - low) / middle),
    )


def _gb_s(copies: Rows) -> Float64:
    return copies.ints("size_bytes") / np.maximum(copies.ints("duration_ns"), 1)


def _alone(peer: Rows) -> Bool:
    """Whether no other peer copy ran at the same time."""
    start, end = peer.when()
    begun = np.searchsorted(np.sort(start), end)
    done = np.searchsorted(np.sort(end), start, side="right")
    return np.asarray(begun - done <= 1)


def _beside(copies: Rows, peer: Rows) -> float:
    """Bytes per ns of all peer copies, by their share in the time of these."""
    busy = _busy(copies)
    start = peer.ints("start_ns")
    duration = np.maximum(peer.ints("duration_ns"), 1)
    inside = covered(start, start + duration, busy) / duration
    return float((peer.ints("size_bytes") * inside).sum() / max(total(busy), 1))


def _busy(copies: Rows) -> Intervals:
    return union(*copies.when())
