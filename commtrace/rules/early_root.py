"""The root of a reduce or gather waits for the first of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Int64, among, codes, distinct, grouped
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.chance import at_least
from commtrace.causal.work.cores import taken_cores
from commtrace.comms import TO_ROOT, members
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough, too_few
from commtrace.intervals import total, union
from commtrace.metrics.run.joined_rows import joined_rows, operation_of
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._examples import rooted
from commtrace.rules._for_all import made_for_all
from commtrace.rules._rule import Rule
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.causal.blame.culprit import Culprit
    from commtrace.measures import Measures
    from commtrace.table import Rows

_SIGNIFICANT = 0.05
_MOST_OF = 0.5  # of the root's waiting
_SEVERAL = 4  # that follow one another, in each step


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
        root is early because it has less to do, give it more. Where each step has several in a
        row, of which nothing comes back in between, collect what they send and send it once.

    Blind spots
        Where all others are late by operators that the root does not run, or on more, and that
        explains most of the waiting, it is told alone (straggler). Traces of NCCL before torch 2.5
        and of gloo without shapes do not name the root: there it is who alone waited, if several
        operations show the same. Waiting for the later ones, after the first came, is not counted.
    """

    explains: ClassVar[tuple[str, ...]] = ("straggler", "jitter", "exposed-communication")

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per communicator and root, and size where it occurs often enough."""
        roots = _at_root(run, self.min_operations)
        groups = grouped(roots.coded("communicator"), roots.ints("root"), self._often(roots))
        found = []
        for mine in map(roots.take, groups):
            early = mine.take(mine.ints("wait_ns") > 0)
            fair = float(np.mean(1 / mine.ints("present")))
            p_value = min(at_least(len(early), len(mine), fair) * len(groups), 1.0)
            few = len(mine) < self.min_operations and len(early) > fair * len(mine)
            sure = few or p_value <= _SIGNIFICANT
            if sure and worth_reporting(_cost_ns(early), run, self.min_step_share):
                found.append((len(mine), (early, mine, p_value)))
        blamed = _blamed(run, self.min_step_share) if found else ()
        late = {rank for its in blamed for rank in its.ranks}
        for one in enough(found, self.min_operations, "operation", "with one root"):
            early, mine, p_value = one
            root = int(early.ints("root")[0])
            if _are_late(early, blamed):
                continue  # not the root is early: see straggler
            answer = made_for_all(run, root, early.ints("operation"))
            if answer and root in late and early.coded("op").being("gather").all():
                continue  # all wait for what it makes of what it gathers: see late-root
            in_turn = _in_a_row(run, root, mine.ints("operation"))
            advice = "; ".join(filter(None, (answer, in_turn)))
            its = self._finding(early, len(mine), p_value, late, advice)
            if taken := taken_cores(run):
                unsure = f"{its.summary} (not sure: {taken}, for which all wait)"
                its = replace(its, summary=unsure, confidence="low")
            yield its

    def _often(self, roots: Rows) -> Int64:
        """The size of operations that enough others share, with its communicator and root."""
        communicator, size = roots.coded("communicator"), roots.ints("size_bytes")
        kind = codes(communicator, roots.ints("root"), size)
        often = communicator.known & (np.bincount(kind)[kind] >= self.min_operations)
        return np.where(often, size, NULL)

    def _finding(
        self, early: Rows, operations: int, p_value: float, late: set[int], advice: str
    ) -> Finding:
        root, cost = int(early.ints("root")[0]), _cost_ns(early)
        more = "" if root in late else ", or give it a larger share of the work"
        usual = median(early.ints("wait_ns"))
        return self.finding(
            early,
            summary=(
                f"root rank {root} is first to {len(early)} of its {operations} reduces or gathers "
                f"and waits {ms(usual)} for the next rank: {ms(cost)} in all"
            ),
            ranks=(root,),
            cost_ns=cost,
            evidence=(
                Evidence("operations whose root was first", len(early), "operations"),
                Evidence("chance of that, corrected", p_value, "probability", _SIGNIFICANT),
                Evidence("median wait of the root", usual, "ns"),
            ),
            ruled_out=("clock error: only waits above three times the clocks' error are counted",),
            advice=(
                f"let rank {root} do other work before it collects, or call asynchronously"
                f"{more}{'; ' if advice else ''}{advice}"
            ),
            confidence="high" if p_value < 1e-3 else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """The root of twelve reduces comes 3 ms before the others."""
        return rooted("reduce", (1000, 4000, 4000))

    @staticmethod
    def good() -> Measures:
        """Another rank comes 3 ms before the root and the third."""
        return rooted("reduce", (4000, 1000, 4000))


def _in_a_row(run: Measures, root: int, operations: Int64) -> str:
    """That operations of a step could be one, if the root has several with no other in between."""
    calls = run.rows("collectives")
    its = np.flatnonzero((calls.ints("rank") == root) & (calls.ints("step") != NULL))
    its = its[np.argsort(calls.ints("start_ns")[its], kind="stable")]
    mine = among(operation_of(run)[its], operations)
    step = calls.ints("step")[its]
    follows = mine[1:] & mine[:-1] & (step[1:] == step[:-1])
    steps, count = distinct(step[mine]).size, np.count_nonzero(mine)
    if count - np.count_nonzero(follows) > steps or count < _SEVERAL * steps or not steps:
        return ""
    each = f"{count / steps:.0f} of each step"
    return f"nothing is sent back between the {each}: send what they carry at once"


def _cost_ns(early: Rows) -> int:
    start = early.ints("arrival_ns")
    return total(union(start, start + early.ints("wait_ns")))


def _blamed(run: Measures, min_step_share: float) -> tuple[Culprit, ...]:
    """Who is late, and should not be given more to do."""
    try:
        return culprits(run, min_step_share).found
    except CannotLook:
        return ()


def _are_late(early: Rows, blamed: tuple[Culprit, ...]) -> bool:
    """Whether all whom the root waits for are late by what they do more, most of its waiting.

    Who has as much to do as others is no later than the root is early.
    """
    group = members(early.coded("communicator").at(0))
    others = {rank for rank in group if rank != int(early.ints("root")[0])}
    theirs = [its for its in blamed if its.more is not None and others & {*its.ranks}]
    late = {rank for its in theirs for rank in its.ranks}
    return (
        bool(others)
        and others <= late
        and (sum(its.on_top_ns for its in theirs) >= _MOST_OF * _cost_ns(early))
    )


def _at_root(run: Measures, min_operations: int) -> Rows:
    """The roots' rows of operations whose root is known; CannotLook if there are too few."""
    to_root = run.rows("collectives").coded("op").where(TO_ROOT.__contains__)
    rows = joined_rows(run, to_root)
    compared = (rows.ints("present") > 1) & (rows.ints("skew_ns") != NULL)
    rows = rows.take(compared & (rows.ints("root") != NULL))
    if (count := distinct(rows.ints("operation")).size) < min_operations:
        which = f"({' or '.join(TO_ROOT)}) matched and with a known root"
        raise too_few(count, "operation", min_operations, which)
    return rows.take(rows.ints("rank") == rows.ints("root"))
