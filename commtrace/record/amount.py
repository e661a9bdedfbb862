"""How many steps to record where the user does not say: enough to repeat, few enough to keep."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise

__all__ = ["EVENTS", "LEAST", "MOST", "WITHIN_S", "StepsBefore", "amount", "lengthened"]

LEAST, MOST = 3, 8
_FURTHEST = 512
WITHIN_S = 10.0
EVENTS = 2_000_000
"""Of one rank. Each takes about a kilobyte of its memory, and 10 µs to be written."""


def amount(step_s: float | None, events_per_s: float | None) -> int:
    """As many as fit into ten seconds, three at least and eight at most; fewer of many events.

    ``step_s`` is what a step has taken before, ``events_per_s`` what the profiler has kept of
    each second; None where unknown.

    >>> amount(0.002, 50_000.0), amount(2.0, 50_000.0), amount(30.0, None), amount(None, None)
    (8, 5, 3, 3)
    >>> amount(30.0, 50_000.0), amount(90.0, 50_000.0)
    (1, 1)
    """
    if step_s is None:
        return LEAST
    in_time, in_events = _fitting(step_s, events_per_s)
    return min(max(in_time, LEAST), MOST, max(in_events, 1))


def lengthened(
    recorded: int, communicating: int | None, took_s: float, events_per_s: float | None
) -> int:
    """So many steps in all that eight communicate, where less than half of those recorded do.

    As where an optimizer steps several times for what was exchanged once. 512 at most, in the same
    time and events; ``took_s`` is how long those recorded took. No more where it is unknown, None,
    how many communicate.

    >>> lengthened(8, 2, 0.5, None), lengthened(8, 0, 0.5, None), lengthened(8, 7, 0.5, None)
    (32, 16, 8)
    >>> lengthened(8, 1, 0.5, None), lengthened(8, 1, 5.0, None), lengthened(8, 1, 20.0, 1e4)
    (64, 16, 8)
    >>> lengthened(8, None, 0.5, None)
    8
    """
    if communicating is None or 2 * communicating >= recorded:
        return recorded
    wanted = MOST * recorded // communicating if communicating else 2 * recorded
    return max(min(wanted, _FURTHEST, *_fitting(took_s / recorded, events_per_s)), recorded)


def _fitting(step_s: float, events_per_s: float | None) -> tuple[int, int]:
    """How many steps of such length fit into the time, and into the events, if these are known."""
    in_events = int(EVENTS / (events_per_s * step_s)) if events_per_s else _FURTHEST
    return int(WITHIN_S / step_s), in_events


class StepsBefore:
    """When the last steps before a window ended, and what the profiler kept of each second."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=4)
        self.events_per_s: float | None = None

    def end(self) -> None:
        """A step has ended."""
        self._ends.append(time.monotonic())

    @property
    def seconds(self) -> float | None:
        """How long they took; None of fewer than one, whose beginning is known."""
        return self._ends[-1] - self._ends[0] if len(self._ends) > 1 else None

    def amount(self) -> int:
        """How many steps to record, by the quickest of them."""
        times = [end - start for start, end in pairwise(self._ends)]
        return amount(min(times, default=None), self.events_per_s)
