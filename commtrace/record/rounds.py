"""The end of a window in which few steps communicate, as where each rank averages after many.

Ranks may step unequally often between two exchanges, as on shards of unlike lengths: the steps that
communicate are what they have in common.
"""

from __future__ import annotations

import time

from commtrace.record.amount import MOST, is_enough
from commtrace.record.communicating import Communicating
from commtrace.record.rank_agreement import Meeting

__all__ = ["Rounds"]

_TWICE = 2  # the time and the steps, after which nothing is waited for


class Rounds:
    """Eight steps that communicate, fewer where these do not fit into the time and the events."""

    def __init__(
        self, meeting: Meeting, communicating: Communicating, began: float, events_per_s: float
    ) -> None:
        self._meeting, self._communicating = meeting, communicating
        self._began, self._events_per_s = began, events_per_s
        self._seen = communicating.steps or 0

    def are_over(self, recorded: int) -> bool:
        """Whether the step that has just ended is the last, of so many."""
        took_s, seen = time.monotonic() - self._began, self._communicating.steps or 0
        enough = is_enough(recorded, took_s, self._events_per_s)
        if seen == self._seen and not enough:
            return False
        # Nobody has ended the next one, which needs this rank.
        last = self._meeting.lower("last round", min(seen + 1, MOST) if enough else MOST)
        is_last = seen > self._seen and seen >= last
        self._seen = seen
        never = is_enough(recorded // _TWICE, took_s / _TWICE, self._events_per_s)
        return is_last or never
