"""Copies between host and GPU from or to memory that is not pinned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int64, distinct
from commtrace.causal.savings import Saving, of_copies
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.intervals import Intervals, total, union, united
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._rule import Rule, too
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.topology import host_link
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

Confidence = Literal["high", "medium", "low"]
_SEVERAL = 10
_OTHER_WAY = {"HtoD": "DtoH", "DtoH": "HtoD"}


class PageableCopy(Rule, frozen=True):
    """Large copies between host and GPU go through pageable memory.

    What it detects
        Copies marked Pageable of at least ``min_bytes``, where pinned memory would be more
        than ``min_ratio`` times as fast, and that is worth ``min_step_share`` of the step. How
        fast pinned copies are is taken, best first, from those in the trace, the same way or
        the other way, the rank's own or other ranks', from the GPU's PCIe, or from PCIe 3, which is
        then an assumption.

    Why it costs time
        A GPU can only read memory that stays in place. From pageable memory the driver
        first copies everything into a pinned buffer of its own, piece by piece; the host
        waits meanwhile, and the copy overlaps with nothing.

    What to do
        Pin the host's side (``DataLoader(pin_memory=True)``, ``tensor.pin_memory()``,
        ``torch.empty(..., pin_memory=True)`` for results) and copy with
        ``non_blocking=True``. Synchronise before the host reads a result copied that way.

    Blind spots
        Pinning takes time itself: do it once, not for every batch. The potential saving is that
        of all ranks that copy so: of one alone the others stay late; to the GPU it is that of hosts
        that do not wait for their copies, either, so that on a stream of their own these run beside
        compute. What then runs beside compute from the GPU is saved on top. Copies that shared the
        PCIe with others are slower than they would be alone, pinned or not.
    """

    min_bytes: int = 1_000_000
    min_ratio: float = 1.25
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding, of both directions, with the rank of each that would save most."""
        copies = run.rows("copies")
        with_host = copies.coded("kind").where(_OTHER_WAY.__contains__)
        if not copies.coded("memory").known[with_host].any():
            raise CannotLook("needs copies between host and GPU whose kind of memory is known")
        large = with_host & (copies.ints("size_bytes") >= self.min_bytes)
        large &= copies.ints("duration_ns") > 0
        copies = run.rows("copies", np.flatnonzero(large))
        pageable = copies.take(copies.coded("memory").being("pageable"))
        each = [
            self._worth(run, copies, pageable.take(pageable.coded("kind").being(kind)), kind)
            for kind in pageable.coded("kind").occurring()
        ]
        gains = [(worth, self._gain(run, worth)) for worth in each if worth]
        told = [its for its in gains if worth_reporting(its[1].cost_ns, run, self.min_step_share)]
        if not told:
            return
        told.sort(key=lambda its: -its[1].cost_ns)
        ways = [worth for worth, _ in told]
        gain = (
            told[0][1] if len(ways) == 1 else self._gain(run, [one for way in ways for one in way])
        )
        yield self._finding(run, ways, gain)

    def _worth(self, run: Measures, copies: Rows, some: Rows, kind: str) -> list[_Slow]:
        """Those of one way, of the ranks that would save enough with pinned ones."""
        found = [
            _Slow(some.take(some.ints("rank") == rank), *_reachable(copies, rank, kind, run))
            for rank in distinct(some.ints("rank")).tolist()
        ]
        slow = [one for one in found if one.gb_s > self.min_ratio * one.measured_gb_s]
        return [one for one in slow if worth_reporting(one.saved_ns, run, self.min_step_share)]

    def _gain(self, run: Measures, worth: list[_Slow]) -> Saving:
        """What is saved if all of these are pinned: a program pins on all ranks or on none."""
        by_rank = Counter[int]()
        for one in worth:
            by_rank[one.rank] += one.saved_ns
        faster = [(one.copies, one.gb_s) for one in worth]
        # Pinned, and with non_blocking=True, as the small ones beside them then are.
        fed = [one.rank for one in worth if one.kind == "HtoD"]
        copies = run.rows("copies")
        pinned = copies.coded("kind").being("HtoD") & copies.coded("memory").being("pageable")
        pinned &= np.isin(copies.ints("rank"), fed)
        most = max(by_rank.values())
        return of_copies(run, faster, most, self.min_step_share, pinned=copies.take(pinned))

    def _finding(self, run: Measures, ways: list[list[_Slow]], gain: Saving) -> Finding:
        most = [max(way, key=lambda one: one.saved_ns) for way in ways]
        return self.finding(
            united(*(its.busy for its in most)),
            summary="; ".join(_summary(its, way, run) for its, way in zip(most, ways, strict=True)),
            ranks=tuple(sorted({one.rank for way in ways for one in way})),
            streams=tuple(distinct(np.concatenate([its.streams for its in most])).tolist()),
            saving=gain,
            evidence=tuple(its for one in most for its in self._evidence(one)),
            ruled_out=(f"small copies: only those of {self.min_bytes / 1e6:.3g} MB or more count",),
            advice="; ".join(_ADVICE[its.kind] for its in most),
            confidence=max((its.sure for its in most), key=_CONFIDENCES.index),
        )

    def _evidence(self, its: _Slow) -> Iterator[Evidence]:
        measured, gb_s = its.measured_gb_s, its.gb_s
        yield Evidence(f"bandwidth of pageable {its.kind} copies", measured, "GB/s")
        yield Evidence(f"bandwidth of {its.origin}", gb_s, "GB/s")
        yield Evidence("ratio", gb_s / measured, "x", self.min_ratio)
        yield Evidence("copied from or to pageable memory", its.size_bytes / 1e6, "MB")

    @staticmethod
    def bad() -> Measures:
        """4 MB to the GPU at 5 GB/s from pageable memory, at 12 from pinned."""
        return _copies("pageable", 800)

    @staticmethod
    def good() -> Measures:
        """All from pinned memory."""
        return _copies("pinned", 333)


def _summary(its: _Slow, way: list[_Slow], run: Measures) -> str:
    """What uses pageable memory: of the rank that would save most, and who else has such."""
    others = too([one.rank for one in way], its.rank, run)
    whose = f" of rank {its.rank}{others}" if others else ""
    return (
        f"{counted(len(its.copies), f'{its.kind} copy')}{whose} "
        f"{'uses' if len(its.copies) == 1 else 'use'} pageable memory: "
        f"{its.measured_gb_s:.3g} GB/s, where {its.origin} reach {its.gb_s:.3g} GB/s; pinned, they "
        f"would take {ms(its.size_bytes / its.gb_s)}, not {ms(total(its.busy))}"
    )


_CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")
_ADVICE = {
    "HtoD": "pin the source once (DataLoader(pin_memory=True) or tensor.pin_memory()) and copy "
    "with non_blocking=True",
    "DtoH": "copy into a pinned tensor that is allocated once, with non_blocking=True, and "
    "synchronise before reading it; what then runs beside compute is saved on top",
}


class _Slow(Struct, frozen=True, eq=False):
    """A rank's pageable copies of one direction, and what pinned ones reach."""

    copies: Rows
    gb_s: float
    origin: str
    confidence: Confidence

    @property
    def rank(self) -> int:
        """The rank."""
        return int(self.copies.ints("rank")[0])

    @property
    def kind(self) -> str:
        """Which way they go."""
        return str(self.copies.coded("kind").at(0))

    @property
    def streams(self) -> Int64:
        """The streams that they ran on."""
        return self.copies.ints("stream")

    @property
    def sure(self) -> Confidence:
        """How sure what they would reach is; few copies say less."""
        return (
            self.confidence
            if len(self.copies) >= _SEVERAL
            else max(self.confidence, "medium", key=_CONFIDENCES.index)
        )

    @property
    def measured_gb_s(self) -> float:
        """What they reach together, while any of them runs."""
        return self.size_bytes / max(total(self.busy), 1)

    @property
    def size_bytes(self) -> int:
        """All that they move."""
        return int(self.copies.ints("size_bytes").sum())

    @property
    def busy(self) -> Intervals:
        """When any of them ran."""
        return union(*self.copies.when())

    @property
    def saved_ns(self) -> int:
        """What pinned ones take less."""
        return max(round(total(self.busy) - self.size_bytes / self.gb_s), 0)


def _gb_s(copies: Rows) -> Float64:
    """What each reaches."""
    gb_s: Float64 = copies.ints("size_bytes") / copies.ints("duration_ns")
    return gb_s


def _reachable(copies: Rows, rank: int, kind: str, run: Measures) -> tuple[float, str, Confidence]:
    """What a rank's pinned copies reach in GB/s, which ones those are, and how sure that is."""
    pinned = copies.take(copies.coded("memory").being("pinned"))
    own = pinned.ints("rank") == rank
    ways: tuple[tuple[str, Confidence], ...] = ((kind, "high"), (_OTHER_WAY[kind], "medium"))
    for way, confidence in ways:
        of_way = pinned.coded("kind").being(way)
        for some, whose, sure in ((own, "here", confidence), (~own, "of other ranks", "medium")):
            these = pinned.take(some & of_way)
            if len(these):
                return median(_gb_s(these)), f"pinned {way} copies {whose}", sure
    link, is_known = host_link(run)
    over = link.name if is_known else f"{link.name} (assumed)"
    return link.usual_gb_s, f"pinned copies over {over} usually", "medium" if is_known else "low"


def _copies(memory: str, took_us: float) -> Measures:
    run = Tiny()
    for i in range(10):
        for at, one, took in ((0, memory, took_us), (1000, "pinned", 333)):
            run.copy(
                0,
                i * 2000 + at,
                took,
                kind="HtoD",
                size=4_000_000,
                source="host",
                destination="cuda:0",
                memory=one,
            )
    return run.trace()
