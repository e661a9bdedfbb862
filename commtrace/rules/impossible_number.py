"""Bandwidths that no link has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.expect import pcie
from commtrace.metrics.rank.rows_of import columns_of, rows_at
from commtrace.metrics.run.bandwidth import served, streams
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.topology import gpu_name, link, uniform_link
from commtrace.trace_tables import COPIES
from commtrace.units import counted, mb, ms

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

_MARGIN = 1.05  # sizes are exact, but times end on the clock's ticks


class ImpossibleNumber(Rule, frozen=True):
    """An operation or a copy is faster than its link: the numbers are wrong, not the link fast.

    What it detects
        Operations and copies of at least ``min_bytes`` that took less than the floor no
        algorithm beats: S (n-1)/n / B for all_gather, reduce_scatter and the like, S / B for
        all others, all_reduce included, since a network that reduces halves its traffic. B is
        the peak of the recorded link, else ``peak_gb_s``, more than any NVLink before the
        sixth has; for copies to and from the host that of the GPU's PCIe, else ``host_gb_s``,
        as much as Grace has. At least ``min_share`` of their kind have to be that fast.

    Why it costs time
        It costs no time, but whoever explains such a number explains an error.

    What to do
        Fix the measurement first: is the size right (element type, uneven splits, a size
        that is not what was sent), and does the event cover all of the transfer?

    Blind spots
        A wrong number within what is possible is not detected. On gloo a send can end when its
        bytes are in a buffer: sends and receives on the CPU are not looked at. Nor are copies
        within a GPU, whose limit is the memory.
    """

    explains: ClassVar[tuple[str, ...]] = ("uneven-p2p-bandwidth", "detour-beats-direct")

    min_bytes: int = 1_000_000
    peak_gb_s: float = 900.0
    host_gb_s: float = 450.0
    min_share: float = 0.1

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of operation, and one per way of copies."""
        copies = self._copies(run)
        try:
            known = self._operations(run)
        except CannotLook:
            if copies.empty:
                raise CannotLook("needs sizes: neither an operation nor a copy has one") from None
        else:
            for (op, _), some in self._wrong(known, ["op", "dtype"]):
                yield self._finding(
                    some, str(op), streams(some, run), "in-network reduction: allowed for"
                )
        for way, some in self._wrong(copies, ["rank", "kind", "source", "destination"]):
            _, kind, source, destination = way
            streams_, where = tuple(sorted(set(some["stream"]))), f" {source} → {destination}"
            yield self._finding(
                some, f"{kind} copy", streams_, "overlap: each is timed alone", where
            )

    def _wrong(self, known: pd.DataFrame, by: list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
        """By operation or way, those too fast, if they are more than a stray few."""
        for what, some in known.groupby(by, observed=True, dropna=False):
            wrong = some[some["gb_s"] > _MARGIN * some["peak"]]
            if len(wrong) and len(wrong) >= self.min_share * len(some):
                yield what, wrong

    def _operations(self, run: Measures) -> pd.DataFrame:
        known = served(run, cold=True).frame()
        recorded = uniform_link(run)
        on_cpu = bool((run.collective_columns["device"] == "cpu").all())
        known = known[known["size_bytes"] >= self.min_bytes]
        if on_cpu:
            known = known[~known["op"].isin(["send", "recv"])]
        moved = known["size_bytes"] * known["factor"].clip(upper=1)
        return known.assign(
            gb_s=moved / known["transfer_ns"],
            peak=recorded.peak_gb_s if recorded else self.peak_gb_s,
            start_ns=known["first_arrival_ns"],
            end_ns=known["last_end_ns"],
            duration_ns=known["transfer_ns"],
        )

    def _copies(self, run: Measures) -> pd.DataFrame:
        its: Any = columns_of(run, COPIES)
        large = its["size_bytes"] >= self.min_bytes
        known_ends = (its["source"].codes >= 0) & (its["destination"].codes >= 0)
        between = its["kind"].where(("HtoD", "DtoH", "PtoP").__contains__)
        known = rows_at(run, "copies", np.flatnonzero(large & known_ends & between))
        ends = list(zip(known["source"], known["destination"], strict=True))
        peaks = {way: self._peak(*way, run) for way in set(ends)}
        return known.assign(
            gb_s=known["size_bytes"].astype("float64") / known["duration_ns"].clip(lower=1),
            peak=[peaks[way] for way in ends],
            end_ns=known["start_ns"] + known["duration_ns"],
        )

    def _peak(self, source: str, destination: str, run: Measures) -> float:
        if "host" in (source, destination):
            host = pcie(gpu_name(run))
            return host.peak_gb_s if host else self.host_gb_s
        recorded = link(source, destination, run)
        return recorded.peak_gb_s if recorded else self.peak_gb_s

    def _finding(
        self,
        some: pd.DataFrame,
        what: str,
        streams: tuple[int, ...],
        ruled_out: str,
        where: str = "",
    ) -> Finding:
        gb_s, peak = float(some["gb_s"].median()), float(some["peak"].iloc[0])
        size, took = float(some["size_bytes"].median()), float(some["duration_ns"].median())
        return self.finding(
            some,
            summary=(
                f"{counted(len(some), what)} of {mb(size)}{where} "
                f"{'seems' if len(some) == 1 else 'seem'} to take {ms(took)}: that needs "
                f"{gb_s:.4g} GB/s, and the fastest link here has {peak:.3g} GB/s"
            ),
            streams=streams,
            cost_ns=0,
            evidence=(
                Evidence("bandwidth needed at least", gb_s, "GB/s", peak),
                Evidence("measured in", len(some), "operations"),
            ),
            ruled_out=(ruled_out,),
            advice=(
                "fix the measurement before explaining it: the size (element type, splits) or "
                "the time (an event that covers only part of the transfer) is wrong"
            ),
            confidence="high",
        )

    @staticmethod
    def bad() -> Measures:
        """1 GB broadcast in 0.77 ms: 1.3 TB/s."""
        return _broadcasts(770)

    @staticmethod
    def good() -> Measures:
        """In 2.5 ms: 400 GB/s."""
        return _broadcasts(2500)


def _broadcasts(took_us: float) -> Measures:
    run = Tiny(2)
    for i in range(3):
        for rank in range(2):
            run.collective(rank, "broadcast", i * 3000, took_us, size=1_000_000_000, root=0)
    return run.trace()
