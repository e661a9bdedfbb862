"""A broadcast or scatter waits for its root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from commtrace.arrays import NULL
from commtrace.comms import FROM_ROOT
from commtrace.diagnosis import CannotLook, Finding
from commtrace.metrics.run.waits import matched
from commtrace.rules._culprit import delays
from commtrace.rules._examples import rooted
from commtrace.rules._for_all import made_for_all
from commtrace.rules._rule import Rule

if TYPE_CHECKING:
    from commtrace.measures import Measures


class LateRoot(Rule, frozen=True):
    """The root of broadcasts or scatters arrives after everybody else.

    What it detects
        A rank that others wait for mostly where it is the root of a broadcast or scatter, and
        whose own work before, made as long as is typical of the others, saves at least
        ``min_step_share`` of the steps' time when the run is replayed (see straggler).

    Why it costs time
        Nobody can receive what the root has not sent: all wait for it.

    What to do
        Let the root make what it sends earlier, or send it later in everybody's order, after
        work that does not need it; choose a root that is ready sooner.

    Blind spots
        Traces of NCCL before torch 2.5 and of gloo without shapes do not name the root: there it
        is who the others waited for, which may be a rank that only passes on what it receives. A
        root that is late because it waited elsewhere is not blamed.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per root, or per set of roots that are late together."""
        its = matched(run).operations
        root = its.ints("root")[its.coded("op").where(FROM_ROOT.__contains__)]
        if root.size and (root == NULL).all():
            raise CannotLook(
                "needs to know the roots: no broadcast or scatter names its own, nor waits for one"
            )
        for found in delays(self, run, self.min_step_share, "root", who="root"):
            each = (made_for_all(run, rank, found.operations) for rank in found.ranks)
            instead = next(filter(None, each), "")
            yield replace(found, advice="; ".join(filter(None, (instead, found.advice))))

    @staticmethod
    def bad() -> Measures:
        """The root of twelve broadcasts comes 3 ms after the others."""
        return rooted("broadcast", (4000, 1000, 1000))

    @staticmethod
    def good() -> Measures:
        """Another rank comes 3 ms after the root and the third."""
        return rooted("broadcast", (1000, 4000, 1000))
