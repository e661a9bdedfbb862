"""Kernels run more slowly beside communication than alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, grouped, quantiles
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.measures import taken
from commtrace.metrics.rank.kernels_beside import KERNELS_BESIDE, covered_shares, kernels_beside
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule, too
from commtrace.synthetic import Tiny
from commtrace.table import Rows, Table
from commtrace.trace_tables import KERNELS
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_WAYS = ("beside", "alone")
_BESIDE = 0.8  # of a kernel's time
_FEW = 0.05  # of the kernels alone: what was long for another reason
_TELLS_OF = 3  # times as much compute beside communication as was compared
_ALONE = Table(
    "alone",
    "one kernel beside which no communication ran",
    KERNELS.only(("name", "start_ns", "duration_ns")),
)


class _Compared(Struct, frozen=True, eq=False):
    """Kernels' times beside communication and alone on one device: rows of KERNELS_BESIDE.

    ``slowdown`` is the one by the other, ``alone_ns`` what those beside would take alone.
    """

    kernels: Rows
    slowdown: Float64
    alone_ns: Float64

    def take(self, which: Int64 | Bool) -> _Compared:
        """Some of them."""
        return _Compared(self.kernels.take(which), self.slowdown[which], self.alone_ns[which])

    @property
    def rank(self) -> int:
        """The rank of the first."""
        return int(self.kernels.ints("rank")[0])

    @property
    def times(self) -> float:
        """How many times as long all take beside communication."""
        return float((self.slowdown * self.alone_ns).sum() / self.alone_ns.sum().clip(min=1))

    @property
    def usual_times(self) -> float:
        """How many times as long at least half of them take, by time: one kind proves nothing."""
        order = np.argsort(self.slowdown)
        until = np.cumsum(self.alone_ns[order])
        return float(self.slowdown[order][np.searchsorted(until, until[-1] / 2)])

    @property
    def share(self) -> float:
        """Of all compute beside communication on the device, these kernels'."""
        return min(self._touched_ns / max(self._all_ns, 1.0), 1.0)

    @property
    def lost_ns(self) -> float:
        """What they lost, and as much of what else ran beside communication, as far as it tells."""
        alone = self.kernels.floats("median_alone")
        lost = float((self.kernels.ints("touched_ns") - self.kernels.ints("touched") * alone).sum())
        others = min(max(self._all_ns - self._touched_ns, 0.0), _TELLS_OF * self._touched_ns)
        return max(lost, 0.0) + others * (1 - 1 / max(self.times, 1.0))

    @property
    def _touched_ns(self) -> float:
        return float(self.kernels.ints("touched_ns").sum())

    @property
    def _all_ns(self) -> float:
        return float(self.kernels.floats("all_beside_ns")[0])


class Contention(Rule, frozen=True):
    """Compute kernels slow down while communication runs on the same GPU.

    What it detects
        Kernels of one kind, that is of one name and between the same two before and behind, of
        which at least ``min_kernels`` ran beside communication and as many alone, the middle half
        of each within ``spread_pct``. Those beside took longer by more than a factor of
        ``min_slowdown`` (and not of ``max_slowdown``: that is another shape of the same kernel, and
        so it is where more than a few take as long alone, too): all kinds together, at least half
        of them by time, and on most of the GPUs where any could be compared. At least
        ``min_step_share`` of the steps' time was lost that way, by these kernels and, taken to be
        as much slower, by what else ran beside communication, up to three times as much.

    Why it costs time
        Communication kernels occupy multiprocessors and memory bandwidth that compute needs.
        Overlap hides communication, but less than it seems.

    What to do
        Fewer NCCL channels (``NCCL_MAX_NCHANNELS``), copy engines or in-network reduction
        where there are any; move communication beside kernels that are bound elsewhere.

    Blind spots
        A kernel's shape is not in the trace: where a layer that is always beside communication
        runs the kernels of another one on other shapes, it looks the same; of a single kind this is
        told with low confidence. Kernels that never run alone. Communication that only waits for
        a late rank slows kernels as well.
    """

    min_kernels: int = 10
    min_slowdown: float = 1.1
    max_slowdown: float = 3.0
    spread_pct: float = 15.0
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding, with the worst of the devices that have the fault."""
        compared = self._compared(run)
        if not compared:
            raise CannotLook(
                f"needs a kernel that ran {self.min_kernels} times beside communication and as "
                "often alone"
            )
        slow = [one for one in compared if min(one.times, one.usual_times) > self.min_slowdown]
        if 2 * len(slow) <= len(compared):
            return
        worth = [one for one in slow if worth_reporting(one.lost_ns, run, self.min_step_share)]
        if worth:
            worst = max(worth, key=lambda one: one.lost_ns)
            yield self._finding(run, worst, tuple(sorted({one.rank for one in worth})))

    def _compared(self, run: Measures) -> list[_Compared]:
        """Of each device's kernels the times beside communication and alone, if steady."""
        ranks = sorted(ranks_of(run, "kernels"))
        if not any(map(partial(_computes, run), ranks)) or not _communicates(run):
            raise CannotLook("needs compute kernels and communication on one GPU")
        both = KERNELS_BESIDE.rows(*(taken(kernels_beside, run, rank) for rank in ranks))
        count = np.minimum(*(both.ints(f"count_{way}") for way in _WAYS))
        spread = np.maximum(*(both.floats(f"spread_{way}") for way in _WAYS))
        beside, alone = (both.floats(f"median_{way}") for way in _WAYS)
        slowdown = np.full(len(both), np.inf)
        np.divide(beside, alone, out=slowdown, where=alone > 0)
        few = np.maximum(_FEW * both.ints("count_alone"), 1)
        another_shape = (both.ints("as_long") > few) & (slowdown > self.min_slowdown)
        sure = (count >= self.min_kernels) & (spread <= self.spread_pct) & ~another_shape
        every = _Compared(both, slowdown, both.ints("count_beside") * alone).take(
            sure & (slowdown < self.max_slowdown)
        )
        by_name = np.argsort(every.kernels.coded("name").ordered().codes, kind="stable")
        every = every.take(by_name)
        device = every.kernels.coded("device").ordered()
        return [every.take(its) for its in grouped(every.kernels.ints("rank"), device)]

    def _finding(self, run: Measures, worst: _Compared, ranks: tuple[int, ...]) -> Finding:
        rank, device = worst.rank, str(worst.kernels.coded("device").at(0))
        slow = worst.take(worst.slowdown > self.min_slowdown)
        names = frozenset(slow.kernels.coded("name").occurring())
        lost = round(worst.lost_ns)
        kernels, share = _kernels(run, rank, names)
        return self.finding(
            kernels.take((share >= _BESIDE) & kernels.coded("device").being(device)),
            summary=(
                f"kernels on rank {rank}'s {device} take {worst.times:.2f} times as long beside "
                f"communication as alone: {ms(lost)} lost{too(ranks, rank)}"
            ),
            ranks=ranks,
            cost_ns=lost,
            evidence=(
                Evidence(
                    "time beside communication over time alone",
                    worst.times,
                    "x",
                    self.min_slowdown,
                ),
                Evidence(
                    "kernels beside communication",
                    int(slow.kernels.ints("count_beside").sum()),
                    "kernels",
                ),
                Evidence("kinds of kernels that are slower", len(slow.kernels), "kinds"),
                Evidence("kinds of kernels compared", len(worst.kernels), "kinds"),
                Evidence(
                    "share of the compute beside communication that was compared",
                    100 * worst.share,
                    "%",
                ),
            ),
            confidence="medium" if len(slow.kernels) > 1 else "low",
            ruled_out=(
                ("throttling: the same kernels run at full speed when no communication runs",)
                if _steady_over_time(run, names)
                else ()
            ),
            advice=(
                "let communication use fewer multiprocessors (NCCL_MAX_NCHANNELS) or copy engines, "
                "and measure whether its own time grows by less than compute gains"
            ),
        )

    @staticmethod
    def bad() -> Measures:
        """Each kernel takes 100 µs alone and 150 µs beside an all_reduce."""
        return _run(beside_us=150)

    @staticmethod
    def good() -> Measures:
        """They take 105 µs beside the all_reduce."""
        return _run(beside_us=105)


def _run(beside_us: float) -> Measures:
    run = Tiny()
    for step in range(12):
        start = step * 1000
        run.step(0, step, start, 1000)
        run.collective(0, "all_reduce", start + 400, 500, size=1 << 24)
        for i, name in enumerate(("gemm", "norm", "add")):
            run.kernel(0, start + 10 + i * 120, 100, name=name)
            run.kernel(0, start + 405 + i * 160, beside_us, name=name)
    return run.trace()


def _computes(run: Measures, rank: int) -> bool:
    kind = run.rows("kernels", places_of_rank(run, "kernels", rank)).coded("kind")
    return bool(kind.being("compute").any())


def _communicates(run: Measures) -> bool:
    return bool((~run.rows("collectives").coded("device").being("cpu")).any())


def _kernels(run: Measures, rank: int, names: frozenset[str]) -> tuple[Rows, Float64]:
    """A rank's compute kernels of some names, and each one's share beside communication."""
    its = run.rows("kernels", places_of_rank(run, "kernels", rank))
    named = its.coded("name").where(names.__contains__)
    its = its.take(np.flatnonzero(its.coded("kind").being("compute") & named))
    return its, covered_shares(
        run, rank, its.coded("device"), its.ints("start_ns"), its.ints("duration_ns")
    )


def _steady_over_time(run: Measures, names: frozenset[str]) -> bool:
    """Whether the kernels that ran alone were as fast late in the run as early, on any rank."""
    every = (_kernels(run, rank, names) for rank in ranks_of(run, "kernels"))
    alone = _ALONE.rows(*(kernels.take(share == 0).columns for kernels, share in every))
    late = alone.ints("start_ns") > np.median(alone.ints("start_ns"))
    name, count = alone.coded("name").codes.astype(np.int64), len(alone.coded("name").names)
    early_ns, late_ns = (
        quantiles(name[which], alone.ints("duration_ns")[which], 50, count)
        for which in (~late, late)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = late_ns / early_ns
    return not (ratio >= 1.05).any()
