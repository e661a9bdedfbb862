"""Events of categories that nothing reads, such as an accelerator's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.intervals import total, union
from commtrace.reader.json.categories import NEEDLESS
from commtrace.reader.json.decoded_event import Event
from commtrace.units import counted

__all__ = ["Unread"]


class Unread:
    """Counts them by category, with their times."""

    def __init__(self, times: Callable[[list[Any]], Int64]) -> None:
        self._times = times
        self._starts: dict[str | None, list[Int64]] = defaultdict(list)
        self._durations: dict[str | None, list[Int64]] = defaultdict(list)

    def add(self, events: list[Event]) -> None:
        """Take the events of a batch that nothing else took."""
        by_category: dict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            if event.cat not in NEEDLESS:
                by_category[event.cat].append(event)
        for category, its in by_category.items():
            self._starts[category].append(self._times([event.ts for event in its]))
            self._durations[category].append(self._times([event.dur for event in its]))

    def join(self, later: Unread) -> None:
        """Take what another took behind it."""
        for category, parts in later._starts.items():
            self._starts[category] += parts
            self._durations[category] += later._durations[category]

    def messages(self, first_ns: int, last_ns: int) -> list[str]:
        """A line for each category; the times are those of the events that were read."""
        lines = []
        for category, parts in self._starts.items():
            start = np.concatenate(parts)
            duration = np.concatenate(self._durations[category])
            timed = (start != NULL) & (duration >= 0)
            start, end = start[timed], start[timed] + duration[timed]
            busy = total(union(start, end))
            span = int(end.max(initial=last_ns)) - int(start.min(initial=first_ns))
            share = f", {100 * busy / span:.0f} % of the trace's time" if span > 0 else ""
            name = f"of category {category[:40]}" if category else "without a category"
            are, they_are = ("is", "it is") if timed.size == 1 else ("are", "they are")
            lines.append(
                f"{counted(timed.size, 'event')} {name} {are} not read: {busy / 1e6:,.3g} ms"
                f"{share}; if {they_are} an accelerator's, its work and communication are missing "
                "here"
            )
        return lines
