"""What is found so far: the operation of each row, and how it is known."""

from __future__ import annotations

import numpy as np

from commtrace.matching.lines import Int64

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

    def join(self, rows: Int64, number: Int64, evidence: int) -> None:
        """Put rows to operations that others have already."""
        self.number[rows] = number
        self.evidence[rows] = evidence
