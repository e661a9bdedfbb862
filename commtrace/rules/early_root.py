"""The root of a reduce or gather waits for the first of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from commtrace.causal.chance import at_least
from commtrace.causal.culprits import culprits
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough, too_few
from commtrace.intervals import total, union
from commtrace.metrics.run.arrivals import TO_ROOT
from commtrace.metrics.run.joined_rows import joined_rows
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import ms

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

_SIGNIFICANT = 0.05
_KIND = ["communicator", "root", "often"]


class EarlyRoot(Rule, frozen=True):
    """The root of reduces or gathers arrives before anybody has data for it.

    What it detects
        A root that is the first at its reduces or gathers more often than one in as many as
        there are ranks (a binomial test over at least ``min_operations`` of one communicator,
        root and size, or of its other sizes), and waits for the first of the others for at
        least ``min_step_share`` of the steps' time.

    Why it costs time
        The root is idle, while the others go on: only it waits.

    What to do
        Give the root other work first: reorder its calls, or call asynchronously. Where the
        root is early because it has less to do, give it more.

    Blind spots
        NCCL's metadata does not name the root: there the rule is skipped. Waiting for the
        later ones, after the first came, is not counted.
    """

    explains: ClassVar[tuple[str, ...]] = ("straggler", "jitter", "exposed-communication")

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per communicator and root, and size where it occurs often enough."""
        roots = _at_root(run, self.min_operations)
        keys = roots.assign(often=self._often(roots)).groupby(_KIND, observed=True, dropna=False)
        found = []
        for _, mine in keys:
            early = mine[mine["wait_ns"] > 0]
            fair = float((1 / mine["present"]).mean())
            p_value = min(at_least(len(early), len(mine), fair) * keys.ngroups, 1.0)
            few = len(mine) < self.min_operations and len(early) > fair * len(mine)
            sure = few or p_value <= _SIGNIFICANT
            if sure and worth_reporting(_cost_ns(early), run, self.min_step_share):
                found.append((len(mine), (early, len(mine), p_value)))
        late = _late_ranks(run, self.min_step_share) if found else set()
        for one in enough(found, self.min_operations, "operation", "with one root"):
            early, count, p_value = one
            yield self._finding(early, count, p_value, late)

    def _often(self, roots: pd.DataFrame) -> pd.Series[Any]:
        """The size of operations that enough others share, with its communicator and root."""
        size = roots["size_bytes"].astype("Float64")
        keys = [roots["communicator"], roots["root"], size]
        return size.where(
            size.groupby(keys, observed=True).transform("size") >= self.min_operations
        )

    def _finding(
        self, early: pd.DataFrame, operations: int, p_value: float, late: set[int]
    ) -> Finding:
        root, cost = int(early["root"].iloc[0]), _cost_ns(early)
        more = "" if root in late else ", or give it a larger share of the work"
        median = float(early["wait_ns"].median())
        return self.finding(
            early,
            summary=(
                f"root rank {root} is first to {len(early)} of its {operations} reduces or gathers "
                f"and waits {ms(median)} for the next rank: {ms(cost)} in all"
            ),
            ranks=(root,),
            cost_ns=cost,
            evidence=(
                Evidence("operations whose root was first", len(early), "operations"),
                Evidence("chance of that, corrected", p_value, "probability", _SIGNIFICANT),
                Evidence("median wait of the root", median, "ns"),
            ),
            ruled_out=("clock error: only waits above three times the clocks' error are counted",),
            advice=(
                f"let rank {root} do other work before it collects, or call asynchronously{more}"
            ),
            confidence="high" if p_value < 1e-3 else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """The root of twelve reduces comes 3 ms before the others."""
        return _run((1000, 4000, 4000))

    @staticmethod
    def good() -> Measures:
        """Another rank comes 3 ms before the root and the third."""
        return _run((4000, 1000, 4000))


def _run(arrivals_us: tuple[float, ...]) -> Measures:
    run = Tiny(ranks=3)
    for i in range(12):
        for rank, arrival in enumerate(arrivals_us):
            start = i * 10_000 + arrival
            run.collective(rank, "reduce", start, 6000 - arrival, size=1 << 26, root=0)
    return run.trace()


def _cost_ns(early: pd.DataFrame) -> int:
    start = early["arrival_ns"].to_numpy()
    return total(union(start, start + early["wait_ns"].to_numpy()))


def _late_ranks(run: Measures, min_step_share: float) -> set[int]:
    """Who is late elsewhere, and should not be given more to do."""
    try:
        return {rank for its in culprits(run, min_step_share).found for rank in its.ranks}
    except CannotLook:
        return set()


def _at_root(run: Measures, min_operations: int) -> pd.DataFrame:
    """The roots' rows of operations whose root is known; CannotLook if there are too few."""
    rows = joined_rows(run, run.collective_columns["op"].isin(TO_ROOT).to_numpy()).frame()
    rows = rows[(rows["present"] > 1) & rows["skew_ns"].notna()]
    rows = rows[rows["root"].notna()]
    if (count := rows["operation"].nunique()) < min_operations:
        which = f"({' or '.join(TO_ROOT)}) matched and with a known root"
        raise too_few(count, "operation", min_operations, which)
    return rows[rows["rank"] == rows["root"]]
