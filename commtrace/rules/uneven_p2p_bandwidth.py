"""Copies between some GPUs are far slower than between others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Float64, Int64, distinct, rows_by
from commtrace.causal.savings import of_copies
from commtrace.diagnosis import Evidence, Finding
from commtrace.intervals import Intervals, total, united
from commtrace.metrics.run.peer_copies import DevicePair, pairs, too_few_copies
from commtrace.quantiles import median
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.topology import inferred, named
from commtrace.trace_tables import COPIES
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_QUEUED_NS = 20_000


class UnevenP2PBandwidth(Rule, frozen=True):
    """Copies between some GPUs run at a fraction of the bandwidth between others.

    What it detects
        Peer copies of at least ``min_bytes``, ``min_copies`` or more per pair of GPUs, whose
        bandwidth per pair falls into classes more than ``class_gap_pct`` apart. Of each pair
        the copies count that ran while no other did; it has to be steady, the middle half of
        them within ``spread_pct``, or it is left out. A pair without copies of its own time
        is slow only if all that was copied meanwhile is slow too.

    Why it costs time
        GPUs of one machine are not equally near: some share NVLinks, some only a PCIe
        switch, some sit on different CPU sockets. The same bytes take many times longer
        on the slow pairs.

    What to do
        Put the pairs that exchange most on the fast links (CUDA_VISIBLE_DEVICES, rank order). The
        potential saving of a slow pair is what its copies took more than on the fastest.

    Blind spots
        A link's name is a fact only with a recorded topology; otherwise it is a guess from
        the bandwidth and marked so. The trace counts the devices that its process sees:
        CUDA_VISIBLE_DEVICES is taken into account where it is recorded. Copies and
        collectives of processes that were not traced may share a link. ROCm writes peer
        copies as DtoD and hides the pair.
    """

    of_single_events: ClassVar[bool] = True

    min_bytes: int = 16_000_000
    min_copies: int = 3
    class_gap_pct: float = 25.0
    spread_pct: float = 5.0

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per machine: its pairs in classes, the slow ones against the fastest."""
        known = pairs(run, self.min_bytes, self.min_copies)
        if not known:
            raise too_few_copies(run, self.min_bytes, self.min_copies)
        steady = [pair for pair in known if pair.spread_pct <= self.spread_pct]
        for host in dict.fromkeys(pair.host for pair in steady):
            yield from self._on_host([pair for pair in steady if pair.host == host], run)

    def _on_host(self, steady: list[DevicePair], run: Measures) -> Iterator[Finding]:
        gap = 1 + self.class_gap_pct / 100
        classes = _classes(steady, gap)
        fastest = classes[-1]
        slower = [pair for one in classes[:-1] for pair in one]
        slow = [pair for pair in slower if pair.at_most_gb_s * gap < fastest[-1].gb_s]
        if slow:
            shown = [one for one in classes if one is fastest or any(p in slow for p in one)]
            yield self._finding(shown, slow, run)

    def _finding(
        self, classes: list[list[DevicePair]], slow: list[DevicePair], run: Measures
    ) -> Finding:
        fast = classes[-1][-1]
        worst, copies = slow[0], _copies_of(slow)
        gains = [
            Evidence(f"potential saving, {pair.ends}", _gain_ns(pair, fast.gb_s) / 1e6, "ms")
            for pair in slow
        ]
        faster = [(pair.copies, fast.gb_s) for pair in slow]
        gain = of_copies(run, faster, _recoverable_ns(slow, fast.gb_s), 0.0)
        sure = all(len(pair.copies) >= 10 and named(*_ends(pair), run) for pair in (worst, fast))
        return self.finding(
            copies.when(),
            summary=_summary(classes, run),
            ranks=tuple(sorted({pair.rank for pair in slow})),
            streams=tuple(distinct(copies.ints("stream")).tolist()),
            saving=gain,
            evidence=(
                *(Evidence(pair.ends, pair.gb_s, "GB/s") for one in classes for pair in one),
                Evidence(
                    f"{fast.ends} to {worst.ends}",
                    fast.gb_s / worst.gb_s,
                    "x",
                    1 + self.class_gap_pct / 100,
                ),
                *gains,
            ),
            ruled_out=_ruled_out(slow, fast),
            advice=_advice(slow, fast),
            confidence="high" if sure else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """40 MB to one GPU in 0.45 ms, to another in 5.3 ms, to neither more at a time."""
        return _copies(450, 5300)

    @staticmethod
    def good() -> Measures:
        """The same to both in 0.45 ms."""
        return _copies(450, 450)


def _copies(first_us: float, second_us: float) -> Measures:
    run = Tiny()
    for i in range(10):
        for gpu, at, took in ((1, 0, first_us), (2, 1000, second_us)):
            run.copy(
                0,
                i * 7000 + at,
                took,
                kind="PtoP",
                size=40_000_000,
                destination=f"cuda:{gpu}",
                stream=20 + gpu,
            )
    return run.trace()


def _classes(steady: list[DevicePair], gap: float) -> list[list[DevicePair]]:
    """The pairs by bandwidth, slowest first, cut wherever the next is faster by the gap."""
    classes: list[list[DevicePair]] = []
    for pair in sorted(steady, key=lambda pair: pair.gb_s):
        if classes and pair.gb_s <= gap * classes[-1][-1].gb_s:
            classes[-1].append(pair)
        else:
            classes.append([pair])
    return classes


def _summary(classes: list[list[DevicePair]], run: Measures) -> str:
    shown = classes if len(classes) <= 3 else [classes[0], classes[-1]]
    parts = []
    for place, one in enumerate(shown):
        who = " and ".join(pair.ends for pair in one) if len(one) <= 2 else f"{len(one)} pairs"
        rate, link = f"{one[0].gb_s:.3g}", _link(one, run)
        if place == 0:
            even = " even alone" if one[0].alone else ""
            copies = "copies" if len(one) == 1 else "copy"
            parts.append(f"{who} {copies} at {rate} GB/s{even} ({link})")
        else:
            parts.append(f"{who} at {rate} GB/s ({link})")
    return ", ".join(parts)


def _advice(slow: list[DevicePair], fast: DevicePair) -> str:
    gains = "; ".join(
        f"{pair.ends} would take {ms(pair.size_bytes / fast.gb_s)}, not {ms(total(pair.busy))}"
        for pair in slow[:3]
    )
    return (
        "put the pairs that exchange most on the fast links (order of ranks, "
        f"CUDA_VISIBLE_DEVICES): as fast as {fast.ends}, {gains}"
    )


def _link(one: list[DevicePair], run: Measures) -> str:
    names = {named(*_ends(pair), run) for pair in one}
    if None in names:
        return inferred(one[0].gb_s)
    return " or ".join(sorted(str(name) for name in names))


def _ends(pair: DevicePair) -> tuple[str, str]:
    return pair.source, pair.destination


def _gain_ns(pair: DevicePair, gb_s: float) -> int:
    return max(round(total(pair.busy) - pair.size_bytes / gb_s), 0)


def _copies_of(slow: list[DevicePair]) -> Rows:
    return COPIES.rows(*(pair.copies.columns for pair in slow))


def _recoverable_ns(slow: list[DevicePair], gb_s: float) -> int:
    """Time in which any slow pair copied, less the same with every copy at full speed.

    What only queued behind such a copy then starts as much earlier, though not before its launch.
    """
    copies = _copies_of(slow)
    now, ideal = [], []
    for at in rows_by(copies.ints("rank"), copies.coded("device"), copies.ints("stream")).values():
        queue = copies.take(at[np.argsort(copies.ints("start_ns")[at], kind="stable")])
        start, end = queue.when()
        took = np.minimum(queue.ints("size_bytes") / gb_s, end - start)
        now.append((start, end))
        ideal.append(_moved_up(start, end, took, queue.ints("launch_ns")))
    return total(united(*now)) - total(united(*ideal))


def _moved_up(start: Int64, end: Int64, took: Float64, launch: Int64) -> Intervals:
    """When the copies of one stream would run if they took so long."""
    launched = np.where(launch == NULL, np.iinfo(np.int64).max, launch)
    begins, free = start.copy(), 0
    for i in range(start.size):
        queued = i and start[i] - end[i - 1] <= _QUEUED_NS and launched[i] <= end[i - 1]
        if queued:
            begins[i] = max(free + start[i] - end[i - 1], launched[i])
        free = begins[i] + round(took[i])
    return begins, begins + np.rint(took).astype(np.int64)


def _ruled_out(slow: list[DevicePair], fast: DevicePair) -> tuple[str, ...]:
    worst = slow[0]
    reasons = []
    of_worst, of_fast = (median(its.copies.ints("size_bytes")) for its in (worst, fast))
    if of_worst >= of_fast:
        reasons.append("size: the slow copies are no smaller than the fast ones")
    for pair in slow[:3]:
        beside = "while no other peer copy ran" if pair.alone else "with all that ran beside it"
        reasons.append(f"contention: {pair.ends} reached {pair.at_most_gb_s:.3g} GB/s {beside}")
    for back in slow:
        if (back.destination, back.source, back.rank) == (*_ends(worst), worst.rank):
            reasons.append(f"direction: {back.ends} is slow too, {back.gb_s:.3g} GB/s")
    return tuple(reasons)
