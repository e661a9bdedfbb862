"""How long steps take that nobody records: those behind the window, and the one before it."""

from __future__ import annotations

import time

__all__ = ["Unrecorded"]

_SETTLES = 3
"""Steps in which other ranks may still write their traces, and whoever needs them waits."""
_ENOUGH, _MOST = 5, 32


class Unrecorded:
    """Of the first 32 steps that nothing of a recording disturbs any more, how long each took.

    Of a program with few steps left only the first of these is taken to be disturbed, in which all
    wait for the last that writes. Where one is left then, the last step before the window counts,
    too: the profiler is ready, and records nothing.
    """

    def __init__(self) -> None:
        self._begun_ns: int | None = None
        self._before_ns: list[int] = []
        self._last_ns: int | None = None
        self._steps_ns: list[int] = []

    def begin_before(self) -> None:
        """The last step before the window begins, of which nothing is recorded."""
        self._begun_ns = time.perf_counter_ns()

    def end_before(self) -> None:
        """It has ended, if it ever began."""
        if self._begun_ns is not None:
            self._before_ns = [time.perf_counter_ns() - self._begun_ns]

    def begin(self) -> None:
        """The trace is written; the program goes on."""
        self._last_ns = time.perf_counter_ns()

    def end(self) -> None:
        """A step has ended. Most of them are beyond those that count."""
        if self._last_ns is None or len(self._steps_ns) == _SETTLES + _MOST:
            return
        now = time.perf_counter_ns()
        self._steps_ns.append(now - self._last_ns)
        self._last_ns = now

    def facts(self) -> dict[str, list[int]]:
        """``unrecorded_steps_ns``, or nothing where there was none."""
        few = len(self._steps_ns) < _SETTLES + _ENOUGH
        its = self._steps_ns[1 if few else _SETTLES :]
        its = [*self._before_ns, *its] if len(its) == 1 else its
        return {"unrecorded_steps_ns": its} if its else {}
