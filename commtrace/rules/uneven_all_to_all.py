"""Some ranks exchange more bytes in an all_to_all than others, who wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted, mb, ms

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures


class UnevenAllToAll(Rule, frozen=True):
    """Some ranks exchange more bytes in an all_to_all than others, who wait for them.

    What it detects
        all_to_all operations in which the rank that sends or receives the most bytes has
        over ``imbalance`` times what each would have if all had the same, and whose
        transfer would be shorter by ``min_step_share`` of the steps if they had.

    Why it costs time
        The operation is over when its busiest rank has sent and received all it has to: its
        bytes set the time, and the others' links idle meanwhile.

    What to do
        Spread the load: in mixture-of-experts a capacity limit or an auxiliary balancing loss,
        else another placement of experts or of embedding tables. The potential saving is the
        share of the transfer that the largest has above the mean: t(1 - mean / max).

    Blind spots
        Needs every rank's trace. Bytes between pairs are not measured, only each rank's sums: an
        exchange can be even by rank and still crowd one link. Each rank is taken to have its own
        link; where ranks of one host share theirs, less is saved. gloo within one host is not
        checked: all bytes cross the same memory, and their sum sets the time. Whether routing is
        uneven only in one phase of the training, one recording cannot show; how often the same rank
        is the busiest is in the evidence, ``steady_pct`` makes it the culprit.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    imbalance: float = 1.2
    min_step_share: float = 0.01
    steady_pct: float = 80.0

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per group."""
        every = run.collective_columns["op"] == "all_to_all"
        if not every.any():
            return
        if len(run.ranks) < 2:
            raise CannotLook("needs several ranks: what the others exchange is unknown")
        if _in_one_memory(run):
            raise CannotLook(
                "needs several hosts, or NCCL: within a host all bytes of gloo cross its memory"
            )
        loads = _loads(run)
        if loads.empty:
            raise CannotLook("needs the sizes of an all_to_all on every rank of its group")
        for _, of_group in loads.groupby("communicator", observed=True):
            uneven = of_group[of_group["imbalance"] > self.imbalance]
            less = uneven["transfer_ns"] * (1 - 1 / uneven["imbalance"])
            gain = of_transfers(
                run, uneven.reset_index(), less, float(less.sum()), self.min_step_share
            )
            if len(uneven) and worth_reporting(gain.cost_ns, run, self.min_step_share):
                yield self._finding(uneven, len(of_group), gain)

    def _finding(self, uneven: pd.DataFrame, count: int, gain: Saving) -> Finding:
        busiest = uneven["busiest"].mode().iloc[0]
        share = 100 * float((uneven["busiest"] == busiest).mean())
        steady = share >= self.steady_pct
        imbalance, most = (float(uneven[name].median()) for name in ("imbalance", "most"))
        who = f"rank {busiest}" if steady else "the busiest rank (it changes)"
        return self.finding(
            (uneven["first_arrival_ns"].fillna(uneven["start_ns"]), uneven["last_end_ns"]),
            summary=(
                f"{len(uneven)} of {counted(count, 'all_to_all')} "
                f"{'is' if len(uneven) == 1 else 'are'} uneven: {who} has {mb(most)}, "
                f"{imbalance:.3g}x the mean"
            ),
            ranks=(int(busiest),) if steady else (),
            streams=tuple(sorted(int(stream) for stream in uneven["stream"].unique())),
            cost_ns=gain.cost_ns,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            evidence=(
                Evidence("largest by mean, median", imbalance, "x", self.imbalance),
                Evidence("largest by mean, in the worst", float(uneven["imbalance"].max()), "x"),
                Evidence(f"rank {busiest} is the busiest in", share, "%", self.steady_pct),
                Evidence("transfer, median", float(uneven["transfer_ns"].median()) / 1e6, "ms"),
                *gain.evidence,
            ),
            ruled_out=("late ranks: the time is from the last arrival on",),
            advice=(
                "spread the bytes: capacity limit or balancing loss, or place experts and tables "
                f"otherwise: up to {ms(gain.cost_ns / len(uneven))} per operation"
            ),
            confidence="high" if len(uneven) >= 10 and steady else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """Rank 0 sends twice as much as the others."""
        return _exchange((2 << 20, 1 << 20, 1 << 20, 1 << 20))

    @staticmethod
    def good() -> Measures:
        """All send as much."""
        return _exchange((1 << 20,) * 4)


def _exchange(sent: tuple[int, ...]) -> Measures:
    run = Tiny(ranks=len(sent))
    received = sum(sent) // len(sent)
    for step in range(12):
        for rank, out in enumerate(sent):
            run.collective(rank, "all_to_all", step * 1000, 500, in_bytes=out, out_bytes=received)
    return run.trace()


def _in_one_memory(run: Measures) -> bool:
    one_host = run.ranks["host"].notna().all() and len(set(run.ranks["host"])) == 1
    return bool(one_host and set(run.groups["backend"]) == {"gloo"})


def _loads(run: Measures) -> pd.DataFrame:
    """The operations recorded on every rank, with what the busiest has against the mean."""
    found = matched(run)
    needed = ["op", "in_bytes", "out_bytes", "rank", "stream", "start_ns"]
    rows = (
        run.collective_columns[needed]
        .reset_index(drop=True)
        .assign(operation=found.matches["operation"].to_numpy())
    )
    rows = rows[rows["op"] == "all_to_all"].assign(
        load=lambda table: table[["in_bytes", "out_bytes"]].astype("float64").max(axis=1),
        sent=lambda table: table["in_bytes"].astype("float64"),
    )
    rows = rows.sort_values(["operation", "load"], ascending=[True, False], kind="stable")
    by = rows.groupby("operation")
    loads = by.agg(
        most=("load", "max"),
        mean=("sent", "mean"),
        sized=("sent", "count"),
        busiest=("rank", "first"),
        stream=("stream", "first"),
        start_ns=("start_ns", "min"),
    )
    loads = found.operations.frame().set_index("operation").join(loads, how="inner")
    whole = loads["exact"] & (loads["sized"] == loads["present"]) & (loads["mean"] > 0)
    loads = loads[whole].dropna(subset=["transfer_ns", "last_end_ns"])  # ranks on one clock
    return loads.assign(imbalance=loads["most"] / loads["mean"])
