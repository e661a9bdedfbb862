"""Copies between GPUs, pair by pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import rows_by
from commtrace.diagnosis import too_few
from commtrace.intervals import Intervals, covered, total, union
from commtrace.metrics.rank.hosts import hosts
from commtrace.units import mb

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.diagnosis import CannotLook
    from commtrace.measures import Measures

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
    copies: pd.DataFrame
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
        return int(self.copies["size_bytes"].sum())

    @property
    def busy(self) -> Intervals:
        """When any of its copies ran."""
        return _busy(self.copies)


def pairs(run: Measures, min_bytes: int, min_copies: int) -> list[DevicePair]:
    """Every pair with that many copies of that many bytes, in the order of rank and devices."""
    peer = run.copies[(run.copies["kind"] == "PtoP") & run.copies["size_bytes"].notna()]
    if peer.empty:
        return []
    on = peer["rank"].map(hosts(run).fillna(""))
    return [
        pair
        for host, on_host in peer.groupby(on)
        for pair in _on_host(str(host), on_host, min_bytes, min_copies)
    ]


def too_few_copies(run: Measures, min_bytes: int, min_copies: int) -> CannotLook:
    """What a claim about pairs lacks where ``pairs`` finds none."""
    peer = run.copies[run.copies["kind"] == "PtoP"]
    large = peer[peer["size_bytes"].fillna(0) >= min_bytes]
    of_pairs = rows_by(*(large[name] for name in ("rank", "source", "destination")))
    most = max(map(len, of_pairs.values()), default=0)  # devices may be unknown
    which = f"of {mb(min_bytes)} or more between two GPUs"
    return too_few(most, "copy", min_copies, which)


def _on_host(host: str, peer: pd.DataFrame, min_bytes: int, min_copies: int) -> list[DevicePair]:
    peer = peer.assign(
        gb_s=peer["size_bytes"].astype("float64") / peer["duration_ns"].clip(lower=1),
        alone=_alone(peer),
    )
    large = peer[peer["size_bytes"] >= min_bytes]
    return [
        _pair(host, copies, peer)
        for _, copies in large.groupby(["rank", "source", "destination"], observed=True)
        if len(copies) >= min_copies
    ]


def _pair(host: str, copies: pd.DataFrame, peer: pd.DataFrame) -> DevicePair:
    alone = copies[copies["alone"]]
    taken = alone if len(alone) >= 3 else copies
    low, middle, high = np.percentile(taken["gb_s"], [25, 50, 75])
    return DevicePair(
        host=host,
        rank=int(copies["rank"].iloc[0]),
        source=str(copies["source"].iloc[0]),
        destination=str(copies["destination"].iloc[0]),
        copies=copies,
        alone=len(alone) if taken is alone else 0,
        gb_s=float(middle),
        at_most_gb_s=float(middle) if taken is alone else _beside(copies, peer),
        spread_pct=float(100 * (high - low) / middle),
    )


def _alone(peer: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether no other peer copy ran at the same time."""
    start = peer["start_ns"].to_numpy()
    end = start + peer["duration_ns"].to_numpy()
    begun = np.searchsorted(np.sort(start), end)
    done = np.searchsorted(np.sort(end), start, side="right")
    return np.asarray(begun - done <= 1)


def _beside(copies: pd.DataFrame, peer: pd.DataFrame) -> float:
    """Bytes per ns of all peer copies, by their share in the time of these."""
    busy = _busy(copies)
    start = peer["start_ns"].to_numpy()
    duration = peer["duration_ns"].clip(lower=1).to_numpy()
    inside = covered(start, start + duration, busy) / duration
    return float((peer["size_bytes"].to_numpy(np.float64) * inside).sum() / max(total(busy), 1))


def _busy(copies: pd.DataFrame) -> Intervals:
    start = copies["start_ns"].to_numpy()
    return union(start, start + copies["duration_ns"].to_numpy())
