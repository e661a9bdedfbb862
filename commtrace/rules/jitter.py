"""Somebody is always late, but never the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd

from commtrace.causal.chance import above_zero
from commtrace.causal.culprits import evened, modelled
from commtrace.causal.delays import stands_ns
from commtrace.causal.lateness import arrivals, late_ranks
from commtrace.causal.run_graph import run_graph
from commtrace.diagnosis import Evidence, Finding
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_CHANCE = 0.01


@dataclass(frozen=True)
class Jitter(Rule):
    """Ranks take turns being late, so that everybody always waits for somebody.

    What it detects
        Collectives that everybody waits in (at least ``min_operations``) at which the ranks arrive
        far apart, though none of them is last more often than chance allows. From where a rank
        leaves one collective to where it arrives at the next, the slowest takes at least
        ``min_ratio`` times the mean, and the ranks are idle since the last arrivals are behind the
        mean ones, for at least ``min_step_share`` of the steps' time.

    Why it costs time
        Each collective waits for the slowest of all ranks at that moment. The expected
        maximum of n times that vary grows with n, though their mean does not.

    What to do
        Synchronise less often: accumulate gradients, larger buckets, no barriers. Make the
        times alike: batches of equal length, pinned and enough cores, no other processes.

    Blind spots
        Whether the work varies or the machine does. What separates ranks on several hosts by
        less than three times the clocks' error.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_ratio: float = 1.05
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding."""
        if modelled(run):
            yield from self._replayed(run)
            return
        rows = arrivals(run, self.min_operations)
        operations = _operations(rows)
        late = late_ranks(run, self.min_operations)
        if any(worth_reporting(one.cost_ns, run, self.min_step_share) for one in late):
            return
        behind = operations["last_ns"] - operations["mean_ns"]
        varies = operations["slowest_ns"] - operations["typical_ns"]
        behind = behind.clip(upper=varies)
        behind_ns = rows["operation"].map(behind).fillna(0).astype("int64")
        # Everybody but the last is idle, so that each operation counts all ranks but one.
        rows = rows.assign(late_ns=behind_ns.where(~rows["last"], 0))
        cost = sum(stands_ns(rows, run)) // (rows["rank"].nunique() - 1)
        ratio = float(operations["slowest_ns"].sum() / max(operations["typical_ns"].sum(), 1))
        if worth_reporting(cost, run, self.min_step_share) and ratio >= self.min_ratio:
            yield self._finding(operations, cost, ratio, run)

    def _replayed(self, run: Measures) -> Iterator[Finding]:
        """What is saved if all ranks do each segment in their mean time, stragglers aside."""
        steps = evened(run, self.min_step_share)
        cost, p_value = int(steps.sum()), above_zero(steps.astype(np.float64))
        if p_value > _CHANCE or not worth_reporting(cost, run, self.min_step_share):
            return
        calls = run_graph(run).calls
        waiting = np.flatnonzero(calls.last_ns > calls.start_ns)
        yield self.finding(
            (calls.start_ns[waiting], calls.last_ns[waiting]),
            summary=(
                f"ranks take turns being late: each step would be {ms(cost / steps.size)} shorter "
                "if all did each part of it in their mean time"
            ),
            ranks=tuple(np.unique(calls.rank).tolist()),
            streams=(),
            cost_ns=cost,
            cost_on_top_ns=cost,
            evidence=(
                Evidence("saved per step, median", float(np.median(steps)), "ns"),
                Evidence("chance that it is not in every step", p_value, "probability", _CHANCE),
                Evidence(
                    f"share {of_time(run)}", share_pct(cost, run), "%", 100 * self.min_step_share
                ),
            ),
            ruled_out=("a straggler: what single ranks delay is taken away before, replayed",),
            advice=_advice(run),
        )

    def _finding(self, operations: pd.DataFrame, cost: int, ratio: float, run: Measures) -> Finding:
        known = operations["last_rank"].dropna()
        share = share_pct(cost, run)
        turns = int(known.nunique())
        who = "one rank, not more often than chance allows, is"
        if turns != 1:
            who = f"{turns} ranks take turns being" if turns else "ranks take turns being"
        return self.finding(
            (operations["mean_ns"], operations["last_ns"]),
            summary=(
                f"{who} last to {counted(len(operations), 'collective')}: "
                f"{ms(cost)} of waiting behind the mean arrival"
            ),
            ranks=tuple(sorted({int(rank) for rank in known})),
            cost_ns=cost,
            evidence=(
                Evidence("slowest over mean time between collectives", ratio, "x", self.min_ratio),
                Evidence(f"share {of_time(run)}", share, "%", 100 * self.min_step_share),
                Evidence("ranks that were last", turns, "ranks"),
            ),
            ruled_out=("a straggler: no rank is last more often than chance allows",),
            advice=_advice(run),
        )

    @staticmethod
    def bad() -> Measures:
        """Two ranks, each in turn 6 ms behind the other."""
        return _run(late_us=6000)

    @staticmethod
    def good() -> Measures:
        """The same, 0.2 ms behind."""
        return _run(late_us=200)


def _run(late_us: float) -> Measures:
    run = Tiny(ranks=2)
    for step in range(12):
        for rank in (0, 1):
            arrival = 2000 + (late_us if step % 2 == rank else 0)
            run.step(rank, step, step * 10_000, 10_000)
            run.kernel(rank, step * 10_000, arrival - 10)
            run.collective(
                rank, "all_reduce", step * 10_000 + arrival, 9900 - arrival, size=1 << 26
            )
    return run.trace()


def _operations(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each operation the arrivals, and how long ranks took to it since the one before.

    ``slowest_ns`` and ``typical_ns`` are the maximum and the mean over its ranks.
    """
    before = rows.groupby(["rank", "communicator"], observed=True, dropna=False)["end_ns"].shift()
    took = (rows["arrival_ns"] - before).clip(lower=0)
    by_operation = rows.assign(took_ns=took)[took.notna()].groupby("operation")
    return pd.DataFrame(
        {
            "last_rank": by_operation["last_rank"].first(),
            "mean_ns": by_operation["arrival_ns"].mean().astype("int64"),
            "last_ns": by_operation["arrival_ns"].max(),
            "slowest_ns": by_operation["took_ns"].max().astype("int64"),
            "typical_ns": by_operation["took_ns"].mean().astype("int64"),
        }
    )


def _advice(run: Measures) -> str:
    manifest = run.manifest or {}
    cores, ranks = (manifest.get("cpu") or {}).get("count"), manifest.get("world_size")
    one_host = len(manifest.get("hosts") or ()) == 1
    if cores and ranks and one_host and manifest.get("backend") == "gloo" and cores < ranks:
        shared = f"{ranks} ranks share {counted(cores, 'CPU core')}"
        return f"{shared} and wait for their turn: start no more ranks than cores"
    return "synchronise less often, and make the ranks' work alike: batches of equal length"
