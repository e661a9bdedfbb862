"""How far ranks' clocks are off, as a table, and times on the run's clock by it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int64
from commtrace.table import Column, Rows, Table

__all__ = ["CLOCK", "Offsets"]

CLOCK = Table(
    "clock",
    "one rank",
    (
        Column("rank", "int64", "The rank."),
        Column(
            "clock",
            "int64",
            "The lowest rank that reads the same clock: its host's, unless their ends deny it.",
        ),
        Column(
            "offset_ns",
            "Int64",
            "To subtract from its timestamps at `at_ns`; null if no operation ties its clock "
            "to the lowest rank's.",
            "ns",
        ),
        Column(
            "drift_ppm",
            "float64",
            "How fast the offset grows; null where operations are too few or span under 1 s.",
            "ppm",
        ),
        Column(
            "error_ns",
            "Int64",
            "How far off its corrected timestamps may be anywhere in the run; null with the "
            "offset.",
            "ns",
        ),
        Column(
            "at_ns",
            "int64",
            "Where the offset is stated: the middle of the run's span, on the rank's own clock.",
            "ns",
        ),
        Column("operations", "int64", "Matched operations behind the offset; 0 on one clock."),
        Column(
            "provenance",
            "category",
            "Where the offset is from: `operations` (their ends), `probe` (the recorder's "
            "readings), `host` (one clock with the lowest rank); null where the offset is.",
        ),
    ),
)


class Offsets(Struct, frozen=True, eq=False):
    """What CLOCK holds, as arrays: how far each rank's clock is ahead, as far as is known."""

    rank: Int64
    known: Bool
    ahead_ns: Int64
    drift: Float64
    at_ns: Int64

    @classmethod
    def of(cls, clocks: Rows) -> Offsets:
        """Those of a table."""
        offset = clocks.ints("offset_ns")
        known = offset != NULL
        return cls(
            clocks.ints("rank"),
            known,
            np.where(known, offset, 0),
            np.nan_to_num(clocks.floats("drift_ppm")) * 1e-6,
            clocks.ints("at_ns"),
        )

    def on_run_clock(self, times: Int64, rank: Int64) -> tuple[Int64, Bool]:
        """Times of given ranks on the run's clock, and whether each is known.

        What could not is on its own clock still.
        """
        index = self.rank.searchsorted(rank)
        since = times - self.at_ns[index]
        late = self.ahead_ns[index] + np.rint(since * self.drift[index]).astype(np.int64)
        return times - late, self.known[index]
