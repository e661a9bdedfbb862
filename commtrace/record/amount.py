"""How many steps to record where the user does not say: enough to repeat, few enough to keep."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise

__all__ = [
    "EVENTS",
    "LEAST",
    "MOST",
    "WITHIN_S",
    "StepsBefore",
    "amount",
    "few_communicate",
    "is_enough",
]

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
    in_events = int(EVENTS / (events_per_s * step_s)) if events_per_s else MOST
    return min(max(int(WITHIN_S / step_s), LEAST), MOST, max(in_events, 1))


def few_communicate(recorded: int, communicating: int | None) -> bool:
    """Whether less than half of the steps do; not where it is unknown, None, how many.

    >>> few_communicate(8, 3), few_communicate(8, 4), few_communicate(8, None)
    (True, False, False)
    """
    return communicating is not None and 2 * communicating < recorded


def is_enough(recorded: int, took_s: float, events_per_s: float | None) -> bool:
    """Whether no more steps fit into the time and the events, or are wanted.

    >>> is_enough(32, 0.5, 1e4), is_enough(32, 10.1, 1e4), is_enough(32, 9.0, 1e6)
    (False, True, True)
    >>> is_enough(512, 0.5, None)
    True
    """
    events = (events_per_s or 0.0) * took_s
    return recorded >= _FURTHEST or took_s >= WITHIN_S or events >= EVENTS


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
