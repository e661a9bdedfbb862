"""Kernels run more slowly beside communication than alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.measures import taken
from commtrace.metrics.rank.kernels_beside import KERNELS_BESIDE, covered_shares, kernels_beside
from commtrace.metrics.rank.rows_of import blocks, columns_of_rank, ranks_of
from commtrace.metrics.run.whole import worth_reporting
from commtrace.packed import columns_in
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.trace_tables import KERNELS
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_KIND = ["rank", "device", "name"]
_COLUMNS = [*_KIND, "stream", "start_ns", "duration_ns"]


class Contention(Rule, frozen=True):
    """Compute kernels slow down while communication runs on the same GPU.

    What it detects
        Kernels of one name of which at least ``min_kernels`` ran beside communication and as many
        alone, the middle half of each within ``spread_pct``, and those beside took longer by more
        than a factor of ``min_slowdown`` (and not of ``max_slowdown``: that is another shape of the
        same kernel). At least ``min_step_share`` of the steps' time was lost that way, by these and
        by kernels of the same name that were partly beside.

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
        places = self._compared(run).groupby(["rank", "device"])
        compared = [one.reset_index(drop=True).set_index("name") for _, one in places]
        if not compared:
            raise CannotLook(
                f"needs a kernel that ran {self.min_kernels} times beside communication and as "
                "often alone"
            )
        slow = [one[one["slowdown"] > self.min_slowdown] for one in compared]
        lost = [float(one["lost_ns"].sum()) for one in slow]
        worth = [
            at for at, time in enumerate(lost) if worth_reporting(time, run, self.min_step_share)
        ]
        if worth:
            worst = max(worth, key=lambda at: lost[at])
            ranks = tuple(sorted({int(slow[at]["rank"].iloc[0]) for at in worth}))
            kernels = _compute_kernels(run, slow[worst].index)
            yield self._finding(slow[worst], len(compared[worst]), ranks, kernels)

    def _compared(self, run: Measures) -> pd.DataFrame:
        """Of each device's kernels the times beside communication and alone, if steady."""
        ranks = sorted(ranks_of(run, "kernels"))
        if not any(map(partial(_computes, run), ranks)) or not _communicates(run):
            raise CannotLook("needs compute kernels and communication on one GPU")
        both = KERNELS_BESIDE.frame(*(taken(kernels_beside, run, int(rank)) for rank in ranks))
        enough = both[["count_beside", "count_alone"]].min(axis=1) >= self.min_kernels
        steady = both[["spread_beside", "spread_alone"]].max(axis=1) <= self.spread_pct
        slowdown = both["median_beside"] / both["median_alone"]
        lost = (both["touched_ns"] - both["touched"] * both["median_alone"]).clip(lower=0)
        both = both.assign(slowdown=slowdown, lost_ns=lost)
        both = both[enough & steady & (slowdown < self.max_slowdown)]
        return both.astype({"device": object, "name": object}).sort_values(_KIND)

    def _finding(
        self,
        slow: pd.DataFrame,
        kinds: int,
        ranks: tuple[int, ...],
        kernels: pd.DataFrame,
    ) -> Finding:
        rank, device = int(slow["rank"].iloc[0]), str(slow["device"].iloc[0])
        lost = round(float(slow["lost_ns"].sum()))
        beside_ns = slow["count_beside"] * slow["median_alone"] * slow["slowdown"]
        slowdown = float(beside_ns.sum() / (beside_ns / slow["slowdown"]).sum())
        its = kernels[(kernels["rank"] == rank) & (kernels["device"] == device)]
        its = its[its["beside"] & its["name"].isin(slow.index)]
        return self.finding(
            its,
            summary=(
                f"kernels on rank {rank}'s {device} take {slowdown:.2f} times as long beside "
                f"communication as alone: {ms(lost)} lost"
            ),
            ranks=ranks,
            cost_ns=lost,
            evidence=(
                Evidence(
                    "time beside communication over time alone", slowdown, "x", self.min_slowdown
                ),
                Evidence(
                    "kernels beside communication", int(slow["count_beside"].sum()), "kernels"
                ),
                Evidence("kinds of kernels that are slower", len(slow), "kinds"),
                Evidence("kinds of kernels compared", kinds, "kinds"),
            ),
            ruled_out=(
                ("throttling: the same kernels run at full speed when no communication runs",)
                if _steady_over_time(kernels, slow)
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
    kind: Any = columns_of_rank(run, KERNELS, rank)["kind"]
    return bool(kind.being("compute").any())


def _communicates(run: Measures) -> bool:
    return bool((run.collective_columns["device"] != "cpu").any())


def _compute_kernels(run: Measures, names: pd.Index[str]) -> pd.DataFrame:
    """Compute kernels of some names, ``beside`` communication or ``alone``."""
    kernels = pd.concat(
        some.loc[(some["kind"] == "compute") & some["name"].isin(names), _COLUMNS]
        for some in blocks(run, "kernels", [*_COLUMNS, "kind"])
    )
    share = np.zeros(len(kernels))
    places: Any = kernels.groupby("rank", sort=False).indices
    for rank, at in places.items():
        its: Any = columns_in(kernels, at)
        share[at] = covered_shares(
            run, int(rank), its["device"], its["start_ns"], its["duration_ns"]
        )
    return kernels.assign(beside=share >= 0.8, alone=share == 0)


def _steady_over_time(kernels: pd.DataFrame, slow: pd.DataFrame) -> bool:
    """Whether the kernels that ran alone were as fast late in the run as early."""
    alone = kernels[kernels["alone"] & kernels["name"].isin(slow.index)]
    late = alone["start_ns"] > alone["start_ns"].median()
    names = alone["name"].astype(object)
    early_ns = alone[~late].groupby(names[~late])["duration_ns"].median()
    late_ns = alone[late].groupby(names[late])["duration_ns"].median()
    return bool(((late_ns / early_ns).dropna() < 1.05).all())
