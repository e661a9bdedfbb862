"""What is found so far: the operation of each row, and how it is known."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Int64, codes

__all__ = ["ALIGNMENT", "COMMS_ID", "EVIDENCE", "FLIGHT_RECORDER", "ORDER", "SEQUENCE", "Found"]

COMMS_ID, SEQUENCE, FLIGHT_RECORDER, ALIGNMENT, ORDER = range(5)
EVIDENCE = ("comms-id", "sequence", "flight-recorder", "alignment", "order")


class Found:
    """For each row the number of its operation and the evidence for it; -1 where none is."""

    def __init__(self, number: Int64, evidence: Int64) -> None:
        self.number, self.evidence = number, evidence
        self._next = int(number.max(initial=-1)) + 1

    def new(self, rows: Int64) -> None:
        """Give each of these rows an operation of its own."""
        self.number[rows] = np.arange(self._next, self._next + rows.size)
        self._next += rows.size

    def merge(self, old: Int64, into: Int64, rank: Int64) -> Int64:
        """Make each operation of ``old`` one with that of ``into``, unless a rank has both.

        Returns what became of every number.
        """
        became = np.arange(self._next)
        became[old] = into
        rows = np.flatnonzero(np.isin(self.number, np.concatenate((old, into))))
        both = codes(became[self.number[rows]], rank[rows])
        twice = rows[(np.bincount(both) > 1)[both]]
        became[np.isin(became, became[self.number[twice]])] = -1
        became = np.where(became < 0, np.arange(self._next), became)
        self.evidence[np.isin(self.number, old[became[old] != old])] = ALIGNMENT
        self.number = np.where(self.number >= 0, became[self.number], -1)
        return became

    def join(self, rows: Int64, number: Int64, evidence: int) -> None:
        """Put rows to operations that others have already."""
        self.number[rows] = number
        self.evidence[rows] = evidence
