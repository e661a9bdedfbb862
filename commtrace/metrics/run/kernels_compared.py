"""How much longer kernels take beside communication than others of their kind take alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, grouped
from commtrace.measures import measure, taken
from commtrace.metrics.rank.kernels_beside import KERNELS_BESIDE, kernels_beside
from commtrace.metrics.rank.rows_of import ranks_of
from commtrace.quantiles import median
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Compared", "kernels_compared", "times_beside"]

_WAYS = ("beside", "alone")
_LIMITS = 10, 1.1, 3.0, 15.0  # by default contention's, which asks for the same
_FEW = 0.05  # of the kernels alone: what was long for another reason
_TELLS_OF = 3  # times as much compute beside communication as was compared


class Compared(Struct, frozen=True, eq=False):
    """Kernels' times beside communication and alone on one device: rows of KERNELS_BESIDE.

    ``slowdown`` is the one by the other, ``alone_ns`` what those beside would take alone.
    """

    kernels: Rows
    slowdown: Float64
    alone_ns: Float64

    def take(self, which: Int64 | Bool) -> Compared:
        """Some of them."""
        return Compared(self.kernels.take(which), self.slowdown[which], self.alone_ns[which])

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


@measure
def kernels_compared(
    run: Measures, min_kernels: int, min_slowdown: float, max_slowdown: float, spread_pct: float
) -> list[Compared]:
    """Of each device's kernels the times beside communication and alone, if steady."""
    ranks = sorted(ranks_of(run, "kernels"))
    both = KERNELS_BESIDE.rows(*(taken(kernels_beside, run, rank) for rank in ranks))
    count = np.minimum(*(both.ints(f"count_{way}") for way in _WAYS))
    spread = np.maximum(*(both.floats(f"spread_{way}") for way in _WAYS))
    beside, alone = (both.floats(f"median_{way}") for way in _WAYS)
    slowdown = np.full(len(both), np.inf)
    np.divide(beside, alone, out=slowdown, where=alone > 0)
    few = np.maximum(_FEW * both.ints("count_alone"), 1)
    another_shape = (both.ints("as_long") > few) & (slowdown > min_slowdown)
    sure = (count >= min_kernels) & (spread <= spread_pct) & ~another_shape
    every = Compared(both, slowdown, both.ints("count_beside") * alone).take(
        sure & (slowdown < max_slowdown)
    )
    by_name = np.argsort(every.kernels.coded("name").ordered().codes, kind="stable")
    every = every.take(by_name)
    device = every.kernels.coded("device").ordered()
    return [every.take(its) for its in grouped(every.kernels.ints("rank"), device)]


@measure
def times_beside(run: Measures) -> float:
    """How many times as long kernels take beside communication, on the middle GPU.

    1 where that is not known of most.
    """
    found = [min(its.times, its.usual_times) for its in kernels_compared(run, *_LIMITS)]
    known = 2 * len(found) > len(ranks_of(run, "kernels"))
    return median(found) if known else 1.0
