"""The calls of one host thread: which encloses a moment, which start between two."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from commtrace.reader.json.events import Call

__all__ = ["Nest", "by_thread"]

_DEEPEST = 256  # calls within calls; more is damage, and would cost its square


class Nest:
    """The calls of one thread, and what encloses a moment of it."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.calls = sorted(calls, key=lambda c: (c.start_ns, -c.duration_ns))
        self._starts = [call.start_ns for call in self.calls]
        self._outer: list[int] = []
        is_open: list[int] = []
        for i, call in enumerate(self.calls):
            while is_open and not _is_open(self.calls[is_open[-1]], call.start_ns):
                is_open.pop()
            self._outer.append(is_open[-1] if is_open else -1)
            is_open.append(i)

    def around(self, time_ns: int) -> list[Call]:
        """The calls that are open at a time, innermost first."""
        found = []
        i = bisect_right(self._starts, time_ns) - 1
        for _ in range(_DEEPEST):
            if i < 0:
                break
            if _is_open(self.calls[i], time_ns):
                found.append(self.calls[i])
            i = self._outer[i]
        return found

    def started(self, after_ns: int, until_ns: int) -> list[Call]:
        """The calls that started after one time, and until another."""
        starts = self._starts
        return self.calls[bisect_right(starts, after_ns) : bisect_right(starts, until_ns)]


def by_thread(calls: Iterable[Call]) -> dict[int, Nest]:
    """One nest for each thread that has calls."""
    threads: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        threads[call.thread].append(call)
    return {thread: Nest(its) for thread, its in threads.items()}


def _is_open(call: Call, time_ns: int) -> bool:
    """Whether a call that has started runs at a time; one without duration does when it starts."""
    return call.start_ns + call.duration_ns > time_ns or call.start_ns == time_ns
