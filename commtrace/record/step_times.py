"""What the processor did for each step: how long it ran, and had its thread wait for a core."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import NamedTuple

__all__ = ["StepTimes"]

_MOST = 1_000
_NAME = "/proc/thread-self/schedstat"
_LONGEST = 64  # bytes: three numbers


class _Reading(NamedTuple):
    """Until now: what the thread ran and waited for a core, and what its process ran."""

    ran_ns: int
    waited_ns: int
    process_ns: int


class StepTimes:
    """Of the last 1,000 steps between ``start`` and ``stop``.

    The kernel counts for each thread what it ran, and what it waited though it could have run
    (https://docs.kernel.org/scheduler/sched-stats.html).
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._last = _Reading(0, 0, 0)
        self._steps: deque[list[int]] = deque(maxlen=_MOST)

    def start(self) -> None:
        """The first step begins, in this thread."""
        self._steps.clear()
        try:
            self._file = os.open(_NAME, os.O_RDONLY)
            self._last = self._now()
        except (OSError, ValueError):  # no Linux, or one that does not count it
            self._close()

    def end(self, number: int) -> None:
        """The step of that number has ended."""
        if self._file is None:
            return
        try:
            last, self._last = self._last, self._now()
        except OSError:  # the thread whose times these are has ended
            self._close()
            return
        times = (now - before for now, before in zip(self._last, last, strict=True))
        ran, waited, process = (round(time_ns / 1e3) for time_ns in times)
        self._steps.append([number, ran, waited, process])

    def stop(self) -> list[list[int]] | None:
        """Of each step its number, and what its thread ran and waited, its process ran, in µs.

        None where that is not known.
        """
        known = self._file is not None
        self._close()
        return [*self._steps] if known else None

    def _now(self) -> _Reading:
        assert self._file is not None
        ran, waited, *_ = map(int, os.pread(self._file, _LONGEST, 0).split())
        return _Reading(ran, waited, time.process_time_ns())

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
