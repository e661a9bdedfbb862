"""The traces of several ranks as one run: one operation, one clock. ``match`` is the door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from commtrace.arrays import Bool, Int64
from commtrace.diagnosis import Note
from commtrace.matching.clock_table import CLOCK, Offsets
from commtrace.matching.collective_arrays import rows_of
from commtrace.matching.notes import unmatched
from commtrace.matching.operations import MATCHES, matches_of
from commtrace.matching.rank_clocks import SAME_HOST_ERROR_NS, clock
from commtrace.matching.unknown_peers import with_peers
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "CLOCK",
    "MATCHES",
    "SAME_HOST_ERROR_NS",
    "Matched",
    "Offsets",
    "match",
]


class Matched(Struct, frozen=True):
    """Which rows of ``collectives`` are one operation, and how far each rank's clock is off.

    ``matches`` is MATCHES, ``clock`` CLOCK; ``notes`` say what was left open or contradicts.
    """

    matches: Rows
    clock: Rows
    notes: tuple[Note, ...]

    def on_run_clock(self, times: Int64, rank: Int64) -> tuple[Int64, Bool]:
        """Times of given ranks on the run's clock, and whether each is known."""
        return Offsets.of(self.clock).on_run_clock(times, rank)


def match(run: Measures) -> Matched:
    """Match a run's operations across its ranks, and compare their clocks."""
    rows = with_peers(rows_of(run))
    matches = matches_of(rows)
    clocks = clock(rows, matches)
    return Matched(matches, clocks, unmatched(rows, matches, clocks))
