"""At most so many events of a timeline: what follows closely on one lane becomes one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from commtrace.arrays import Bool, Int64, first_rows, numbered
from commtrace.table import Coded, Rows

__all__ = ["Events", "events_of", "numbered_values", "thinned"]

_COMMUNICATION = "communication"


@dataclass(frozen=True)
class Events:
    """Events as arrays, by lane and start. ``count`` is how many each of them stands for.

    ``lane`` numbers ``lanes``, which are (rank, device, stream); ``label`` numbers ``labels``,
    which are (kind, name); ``operation`` is -1 for what is none.
    """

    lanes: list[tuple[int, str, int]]
    labels: list[tuple[str, str]]
    lane: Int64
    start: Int64
    end: Int64
    wait: Int64
    label: Int64
    operation: Int64
    count: Int64

    @property
    def waited(self) -> Int64:
        """Until when each waited for other ranks: from then on it is transfer."""
        waited: Int64 = self.start + np.minimum(self.wait, self.end - self.start)
        return waited

    def taken(self, which: Bool | Int64) -> Events:
        """Some of the events."""
        arrays = {
            each.name: getattr(self, each.name)[which]
            for each in fields(self)
            if isinstance(getattr(self, each.name), np.ndarray)
        }
        return replace(self, **arrays)

    def of_kind(self, kind: str) -> Bool:
        """Which events are of a kind."""
        return np.asarray([its == kind for its, _ in self.labels], dtype=np.bool_)[self.label]


def events_of(table: Rows) -> Events:
    """The rows of TIMELINE_EVENTS."""
    lane, lanes = numbered_values(table, "rank", "device", "stream")
    label, labels = numbered_values(table, "kind", "name")
    return Events(
        [(rank, str(device), stream) for rank, device, stream in lanes],
        [(str(kind), name or "") for kind, name in labels],
        lane,
        *table.when(),
        table.ints("wait_ns"),
        label,
        table.ints("operation"),
        np.ones(len(table), dtype=np.int64),
    )


def numbered_values(table: Rows, *names: str) -> tuple[Int64, list[tuple[Any, ...]]]:
    """The number of each row's values in these columns, in their order; and the values.

    Strings are in the order of their codes, null is last.
    """
    number = numbered(*(_in_line(table.columns[name]) for name in names))
    values = table.take(first_rows(number)).dicts()
    return number, [tuple(row[name] for name in names) for row in values]


def _in_line(column: Int64 | Coded) -> Int64:
    if not isinstance(column, Coded):
        return column
    return np.where(column.known, column.codes, len(column.names)).astype(np.int64)


def thinned(events: Events, most: int) -> tuple[Events, int]:
    """At most so many events where that can be, and the gap in ns over which they were merged.

    What computes or copies is merged first. Merged communication is no operation any more.
    """
    its, gap = events, 0
    span = int(events.end.max() - events.start.min()) if events.start.size else 0
    shared = events.of_kind(_COMMUNICATION)
    while its.start.size > most and gap < span:
        gap = max(2 * gap, span // 1_000_000, 1)
        its = _merged(events, gap, ~shared)
        if its.start.size > most and shared.sum() > most // 2:
            its = _merged(its, gap, its.of_kind(_COMMUNICATION))
    return its, gap


def _merged(events: Events, gap: int, which: Bool) -> Events:
    """Those events of a lane and kind that are at most so far apart become one."""
    kept, its = events.taken(~which), events.taken(which)
    if not its.start.size:
        return events
    kind = np.unique([kind for kind, _ in its.labels], return_inverse=True)[1][its.label]
    place = its.lane * len(its.labels) + kind
    order = np.lexsort((its.start, place))
    its, place = its.taken(order), place[order]
    base = int(its.start.min())
    far = place * (int(its.end.max()) - base + 1)  # each place behind the one before
    reach = np.maximum.accumulate(its.end - base + far)
    opens = np.append(True, its.start[1:] - base + far[1:] > reach[:-1] + gap)
    opens[1:] |= np.diff(place) != 0
    first = np.flatnonzero(opens)
    count = np.add.reduceat(its.count, first)
    joined = replace(
        its.taken(first),
        end=np.maximum.reduceat(its.end, first),
        wait=np.add.reduceat(its.wait, first),
        operation=np.where(count == 1, its.operation[first], -1),
        count=count,
    )
    return _in_order(kept, joined)


def _in_order(*parts: Events) -> Events:
    both: dict[str, Any] = {
        each.name: np.concatenate([getattr(part, each.name) for part in parts])
        for each in fields(Events)
        if isinstance(getattr(parts[0], each.name), np.ndarray)
    }
    return replace(parts[0], **both).taken(np.lexsort((both["start"], both["lane"])))
