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
_ALONE = Table(
    "alone",
    "one kernel beside which no communication ran",
    KERNELS.only(("name", "start_ns", "duration_ns")),
)


class _Compared(Struct, frozen=True, eq=False):
    """Kernels' times beside communication and alone: rows of KERNELS_BESIDE, by name.

    ``slowdown`` is the one by the other, ``lost_ns`` what all of a kernel's lost.
    """

    kernels: Rows
    slowdown: Float64
    lost_ns: Float64

    def take(self, which: Int64 | Bool) -> _Compared:
        """Some of them."""
        return _Compared(self.kernels.take(which), self.slowdown[which], self.lost_ns[which])

    @property
    def rank(self) -> int:
        """The rank of the first."""
        return int(self.kernels.ints("rank")[0])


class Contention(Rule, frozen=True):
    """Compute kernels slow down while communication runs on the same GPU.

    What it detects
        Kernels of one name of which at least ``min_kernels`` ran beside communication and as many
        alone, the middle half of each within ``spread_pct``, and those beside took longer by more
        than a factor of ``min_slowdown`` (and not of ``max_slowdown``: that is another shape of the
        same kernel, and so it is where more than a few take as long alone, too). At least
        ``min_step_share`` of the steps' time was lost that way, by these and by kernels of the same
        name that were partly beside.

    Why it costs time
        Communication kernels occupy multiprocessors and memory bandwidth that compute needs.
        Overlap hides communication, but less than it seems.

    What to do
        Fewer NCCL channels (``NCCL_MAX_NCHANNELS``), copy engines or in-network reduction
        where there are any; move communication beside kernels that are bound elsewhere.

    Blind spots
        A kernel's shape is not in the trace: one name for two shapes, one of them always
        beside communication, looks the same. Kernels that never run alone.
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
        slow = [one.take(one.slowdown > self.min_slowdown) for one in compared]
        lost = [float(one.lost_ns.sum()) for one in slow]
        worth = [
            at for at, time in enumerate(lost) if worth_reporting(time, run, self.min_step_share)
        ]
        if worth:
            worst = max(worth, key=lambda at: lost[at])
            ranks = tuple(sorted({slow[at].rank for at in worth}))
            yield self._finding(run, slow[worst], len(compared[worst].kernels), ranks)

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
        lost = (both.ints("touched_ns") - both.ints("touched") * alone).clip(min=0)
        few = np.maximum(_FEW * both.ints("count_alone"), 1)
        another_shape = (both.ints("as_long") > few) & (slowdown > self.min_slowdown)
        sure = (count >= self.min_kernels) & (spread <= self.spread_pct) & ~another_shape
        every = _Compared(both, slowdown, lost).take(sure & (slowdown < self.max_slowdown))
        by_name = np.argsort(every.kernels.coded("name").ordered().codes, kind="stable")
        every = every.take(by_name)
        device = every.kernels.coded("device").ordered()
        return [every.take(its) for its in grouped(every.kernels.ints("rank"), device)]

    def _finding(
        self, run: Measures, slow: _Compared, kinds: int, ranks: tuple[int, ...]
    ) -> Finding:
        rank, device = slow.rank, str(slow.kernels.coded("device").at(0))
        names = frozenset(slow.kernels.coded("name").occurring())
        lost = round(float(slow.lost_ns.sum()))
        count = slow.kernels.ints("count_beside")
        beside_ns = count * slow.kernels.floats("median_alone") * slow.slowdown
        slowdown = float(beside_ns.sum() / (beside_ns / slow.slowdown).sum())
        kernels, share = _kernels(run, rank, names)
        return self.finding(
            kernels.take((share >= _BESIDE) & kernels.coded("device").being(device)),
            summary=(
                f"kernels on rank {rank}'s {device} take {slowdown:.2f} times as long beside "
                f"communication as alone: {ms(lost)} lost{too(ranks, rank)}"
            ),
            ranks=ranks,
            cost_ns=lost,
            evidence=(
                Evidence(
                    "time beside communication over time alone", slowdown, "x", self.min_slowdown
                ),
                Evidence("kernels beside communication", int(count.sum()), "kernels"),
                Evidence("kinds of kernels that are slower", count.size, "kinds"),
                Evidence("kinds of kernels compared", kinds, "kinds"),
            ),
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
        """A kernel takes 100 µs alone and 150 µs beside an all_reduce."""
        return _run(beside_us=150)

    @staticmethod
    def good() -> Measures:
        """It takes 105 µs beside the all_reduce."""
        return _run(beside_us=105)


def _run(beside_us: float) -> Measures:
    run = Tiny()
    for step in range(12):
        start = step * 1000
        run.step(0, step, start, 1000)
        run.collective(0, "all_reduce", start + 400, 500, size=1 << 24)
        for i in range(3):
            run.kernel(0, start + 10 + i * 120, 100)
            run.kernel(0, start + 405 + i * 160, beside_us)
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
