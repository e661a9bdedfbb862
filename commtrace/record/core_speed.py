"""How fast the core is that a thread runs on: a fixed piece of work, timed now and then."""

from __future__ import annotations

import threading
import time
from collections import deque

__all__ = ["CoreSpeed"]

_EVERY_NS = 50_000_000
_MOST = 2_000
_NUMBERS = range(2_000)  # some 20 us
_TRIES = 3


class CoreSpeed:
    """Of the last 2,000 looks from ``start`` to ``stop``, no more than one in 50 ms.

    A core that lends its parts to another thread, of another virtual machine, say, or whose clock
    is low, takes longer for the same, and no counter of the kernel says so.
    """

    def __init__(self) -> None:
        self._looks: deque[list[int]] = deque(maxlen=_MOST)
        self._last_ns = 0
        self._thread: int | None = None

    def start(self) -> None:
        """This thread is looked at from here on."""
        self._looks.clear()
        self._last_ns, self._thread = 0, threading.get_ident()

    def look(self) -> None:
        """Time the work, if that was not done lately; in another thread do nothing."""
        if threading.get_ident() != self._thread:
            return
        now = time.monotonic_ns()
        if now - self._last_ns >= _EVERY_NS:
            self._last_ns = now
            self._looks.append([time.time_ns(), min(_took_ns() for _ in range(_TRIES))])

    def stop(self) -> list[list[int]]:
        """Of each look when it was, in Unix ns, and what the work took of the processor, in ns."""
        self._thread = None
        return [*self._looks]


def _took_ns() -> int:
    began = time.thread_time_ns()
    sum(_NUMBERS)
    return time.thread_time_ns() - began
