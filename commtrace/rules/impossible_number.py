"""Bandwidths that no link has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, codes, distinct, first_rows, grouped
from commtrace.comms import POINT_TO_POINT, TO_ROOT
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.expect import pcie
from commtrace.metrics.run.bandwidth import served, streams
from commtrace.quantiles import median
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.topology import gpu_name, link, uniform_link
from commtrace.units import counted, mb, ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

_MARGIN = 1.05  # sizes are exact, but times end on the clock's ticks


_ENDS = ("source", "destination")
_NO_SIZES = "needs sizes of operations, or copies of {:g} MB or more to or from a GPU"


class _Rates(Struct, frozen=True, eq=False):
    """Operations or copies: how long each took, what it needed for that, and what there is."""

    rows: Rows
    took_ns: Int64
    gb_s: Float64
    peak_gb_s: Float64

    def take(self, which: Int64 | Bool) -> _Rates:
        """Some of them."""
        rates = self.gb_s[which], self.peak_gb_s[which]
        return _Rates(self.rows.take(which), self.took_ns[which], *rates)


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

    of_single_events: ClassVar[bool] = True
    explains: ClassVar[tuple[str, ...]] = ("uneven-p2p-bandwidth", "detour-beats-direct")

    min_bytes: int = 1_000_000
    peak_gb_s: float = 900.0
    host_gb_s: float = 450.0
    min_share: float = 0.1

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of operation, and one per kind of copies."""
        copies = self._copies(run)
        try:
            known = self._operations(run)
        except CannotLook:
            if not len(copies.rows):
                raise CannotLook(_NO_SIZES.format(self.min_bytes / 1e6)) from None
        else:
            kinds = grouped(known.rows.coded("op"), known.rows.coded("dtype"))
            for some in map(known.take, self._wrong(known, kinds)):
                op, on = str(some.rows.coded("op").at(0)), streams(some.rows, run)
                yield self._finding(some, op, on, "in-network reduction: allowed for")
        names = (copies.rows.coded(name) for name in ("kind", *_ENDS))
        ways = self._wrong(copies, grouped(copies.rows.ints("rank"), *names))
        wrong = copies.take(np.concatenate((np.empty(0, np.int64), *ways)))
        for some in map(wrong.take, grouped(wrong.rows.coded("kind"), codes(wrong.peak_gb_s))):
            what = f"{some.rows.coded('kind').at(0)} copy"
            ran, ranks = (
                tuple(distinct(some.rows.ints(name)).tolist()) for name in ("stream", "rank")
            )
            where, ruled_out = _where(some.rows), "overlap: each is timed alone"
            yield self._finding(some, what, ran, ruled_out, where, ranks)

    def _wrong(self, known: _Rates, kinds: list[Int64]) -> Iterator[Int64]:
        """Of each kind or way those too fast, if they are more than a stray few."""
        too_fast = known.gb_s > _MARGIN * known.peak_gb_s
        for some in kinds:
            wrong = some[too_fast[some]]
            if wrong.size and wrong.size >= self.min_share * some.size:
                yield wrong

    def _operations(self, run: Measures) -> _Rates:
        known = served(run, cold=True)
        recorded = uniform_link(run)
        on_cpu = bool(run.rows("collectives").coded("device").being("cpu").all())
        large = known.ints("size_bytes") >= self.min_bytes
        # To a root a part may have moved before the last rank came.
        large &= ~(
            np.isnan(known.floats("busbw_gb_s")) & known.coded("op").where(TO_ROOT.__contains__)
        )
        if on_cpu:
            large &= ~known.coded("op").where(POINT_TO_POINT.__contains__)
        known = known.take(large)
        moved = known.ints("size_bytes") * np.minimum(known.floats("factor"), 1)
        took_ns = known.ints("transfer_ns")
        peak = recorded.peak_gb_s if recorded else self.peak_gb_s
        return _Rates(known, took_ns, moved / took_ns, np.full(len(known), peak))

    def _copies(self, run: Measures) -> _Rates:
        every = run.rows("copies")
        large = every.ints("size_bytes") >= self.min_bytes
        known_ends = every.coded("source").known & every.coded("destination").known
        between = every.coded("kind").where(("HtoD", "DtoH", "PtoP").__contains__)
        known = run.rows("copies", np.flatnonzero(large & known_ends & between))
        way = codes(*(known.coded(name) for name in _ENDS))
        ends = (known.coded(name).take(first_rows(way)).decoded() for name in _ENDS)
        peaks = [self._peak(str(a), str(b), run) for a, b in zip(*ends, strict=True)]
        took_ns = known.ints("duration_ns")
        gb_s = known.ints("size_bytes") / took_ns.clip(min=1)
        return _Rates(known, took_ns, gb_s, np.asarray(peaks, np.float64)[way])

    def _peak(self, source: str, destination: str, run: Measures) -> float:
        if "host" in (source, destination):
            host = pcie(gpu_name(run))
            return host.peak_gb_s if host else self.host_gb_s
        recorded = link(source, destination, run)
        return recorded.peak_gb_s if recorded else self.peak_gb_s

    def _finding(
        self,
        some: _Rates,
        what: str,
        streams: tuple[int, ...],
        ruled_out: str,
        where: str = "",
        ranks: tuple[int, ...] = (),
    ) -> Finding:
        gb_s, peak, count = median(some.gb_s), float(some.peak_gb_s[0]), len(some.rows)
        size, took = (median(its) for its in (some.rows.ints("size_bytes"), some.took_ns))
        return self.finding(
            some.rows,
            summary=(
                f"{counted(count, what)} of {mb(size)}{where} "
                f"{'seems' if count == 1 else 'seem'} to take {ms(took)}: that needs "
                f"{gb_s:.4g} GB/s, and the fastest link here has {peak:.3g} GB/s"
            ),
            ranks=ranks,
            streams=streams,
            cost_ns=0,
            evidence=(
                Evidence("bandwidth needed at least", gb_s, "GB/s", peak),
                Evidence("measured in", count, "operations"),
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


def _where(copies: Rows) -> str:
    """Between which ends copies are: of one way these, else the ranks that make them."""
    ends = [copies.coded(name) for name in _ENDS]
    if distinct(codes(*ends)).size == 1:
        source, destination = (end.at(0) for end in ends)
        return f" {source} → {destination}"
    return f" of {numbered('rank', distinct(copies.ints('rank')).tolist())}"


def _broadcasts(took_us: float) -> Measures:
    run = Tiny(2)
    for i in range(3):
        for rank in range(2):
            run.collective(rank, "broadcast", i * 3000, took_us, size=1_000_000_000, root=0)
    return run.trace()
