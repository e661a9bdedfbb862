"""One way between two ranks is slower than all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commtrace.causal.savings import Saving, of_transfers
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import Evidence, Finding, too_few
from commtrace.metrics.run.bandwidth import served, streams
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

ENDS = ["sender", "receiver"]


@dataclass(frozen=True)
class SlowLink(Rule):
    """Transfers between two particular ranks take longer than the same between any others.

    What it detects
        Transfers between two ranks (sends, or operations of groups of two) are compared with the
        median of their own kind and size, within machines and across them separately. One pair with
        ``min_count`` transfers takes more than ``min_ratio`` times as long as the others, its first
        quartile above their third, no other pair half as slow; and it is worth ``min_step_share``
        of the step.

    Why it costs time
        Everybody who waits for these two ranks waits for their link.

    What to do
        Look at the cable, switch port or slot between the two; try the ranks in another
        order, so that a heavy pair does not use this link.

    Blind spots
        Groups of more than two ranks do not show their edges, as NCCL chooses the rings. A
        slow rank or host is slow on all its edges and is no slow link; where an end has no
        other edge in the trace, the two cannot be separated, and the finding says so.
    """

    explains: ClassVar[tuple[str, ...]] = (
        "late-sender",
        "late-receiver",
        "exposed-communication",
    )

    min_count: int = 10
    min_ratio: float = 1.25
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding: the pair that stands out."""
        several_ranks(run)
        known = _between_two(run)
        count = known.groupby(ENDS)["relative"].transform("size")
        known = known[count >= self.min_count]
        level = known.groupby(ENDS)["relative"].median().sort_values()
        if len(level) < 3:
            have = f"of ranks with {counted(self.min_count, 'transfer')} or more"
            raise too_few(len(level), "pair", 3, have)
        sender, receiver = level.index[-1]
        here = known["sender"].eq(sender) & known["receiver"].eq(receiver)
        back = known["sender"].eq(receiver) & known["receiver"].eq(sender)
        slow, rest = known[here], known[~(here | back)]
        ratio = float(slow["relative"].median() / rest["relative"].median())
        others = rest.groupby(ENDS)["relative"].median() / rest["relative"].median()
        less = slow["transfer_ns"] * (1 - 1 / ratio)
        separate = slow["relative"].quantile(0.25) > rest["relative"].quantile(0.75)
        if ratio < self.min_ratio or not separate or others.max() > 1 + (ratio - 1) / 2:
            return
        estimate = wall_ns(slow["last_end_ns"], less)
        gain = of_transfers(run, slow, less, estimate, self.min_step_share)
        if worth_reporting(gain.cost_ns, run, self.min_step_share):
            touching = [bool((rest[ENDS] == end).any(axis=None)) for end in (sender, receiver)]
            yield self._finding(slow, rest, ratio, gain, all(touching), run)

    def _finding(
        self,
        slow: pd.DataFrame,
        rest: pd.DataFrame,
        ratio: float,
        gain: Saving,
        separable: bool,
        run: Measures,
    ) -> Finding:
        sender, receiver = (int(slow[end].iloc[0]) for end in ENDS)
        way = "→" if slow["op"].isin(POINT_TO_POINT).all() else "–"
        ends = f"rank {sender} {way} rank {receiver}"
        slow_gb_s, rest_gb_s = (float(some["busbw_gb_s"].median()) for some in (slow, rest))
        others = rest[ENDS].drop_duplicates()
        return self.finding(
            slow,
            summary=(
                f"{len(slow)} transfers {ends} take {ratio:.2f} times as long as the same between "
                f"{'the other pair' if len(others) == 1 else f'the other {len(others)} pairs'}"
                + ("" if separable else "; link or rank, the trace does not show which")
            ),
            ranks=tuple(sorted((sender, receiver))),
            streams=streams(slow, run),
            cost_ns=gain.cost_ns,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            evidence=(
                Evidence("time against the other pairs", ratio, "x", self.min_ratio),
                Evidence(f"bandwidth {ends}", slow_gb_s, "GB/s"),
                Evidence("bandwidth of the others", rest_gb_s, "GB/s"),
                *gain.evidence,
            ),
            ruled_out=(
                "sizes and late ranks: transfers of one kind are compared, without waiting",
                *(("a slow rank: both are as fast as others elsewhere",) if separable else ()),
            ),
            advice=(
                f"check cable, port and slot between the ranks {sender} and {receiver}, or "
                "order the ranks so that another pair uses this link"
            ),
            confidence="medium" if separable else "low",
        )

    @staticmethod
    def bad() -> Measures:
        """Four ranks in a ring; 2 → 3 takes twice as long."""
        return _ring({2: 200.0})

    @staticmethod
    def good() -> Measures:
        """All of rank 2's edges take twice as long: a slow rank."""
        return _ring({1: 200.0, 2: 200.0})


def _between_two(run: Measures) -> pd.DataFrame:
    """Transfers between two ranks, with their ends and their time against their kind's."""
    known = served(run)
    known = known[known["exact"] & (known["present"] == 2)]
    rows = (
        matched(run)
        .waits[["operation", "rank"]]
        .assign(receives=(run.collectives["op"] == "recv").to_numpy())
    )
    rows = rows[rows["operation"].isin(known["operation"])].sort_values(["receives", "rank"])
    ends = rows.groupby("operation")["rank"].agg(["first", "last"]).loc[known["operation"]]
    known = known.assign(sender=ends["first"].to_numpy(), receiver=ends["last"].to_numpy())
    hosts = run.ranks.drop_duplicates("rank").set_index("rank")["host"].astype(object)
    same = known["sender"].map(hosts).eq(known["receiver"].map(hosts))
    kind = [known["op"], known["dtype"], known["size_bytes"], same]
    times = known.groupby(kind, observed=True, dropna=False)["transfer_ns"]
    return known.assign(relative=known["transfer_ns"] / times.transform("median"))


def _ring(took_us: dict[int, float]) -> Measures:
    run = Tiny(4)
    for i in range(12):
        for rank in range(4):
            took = took_us.get(rank, 100.0)
            to, at = (rank + 1) % 4, i * 1000.0 + rank * 220
            run.collective(rank, "send", at, took, size=4_000_000, peer=to)
            run.collective(to, "recv", at, took, size=4_000_000, peer=rank)
    return run.trace()
