"""What the script of the timeline reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import Int64
from commtrace.metrics.run.waits import operations
from commtrace.reports.web.markup import Markup
from commtrace.reports.web.packed import packed
from commtrace.reports.web.thinned import Events, numbered_values
from commtrace.units import clean, cut

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Step", "timeline_data"]

_KINDS = ("compute", "copy", "communication")
_MOST_LABELS = 4_000
_LETTERS = 90


@dataclass(frozen=True)
class Step:
    """A step of the run: its number and when it lasted, on the run's clock."""

    number: int
    start_ns: int
    end_ns: int


def timeline_data(run: Measures, events: Events, steps: list[Step]) -> Markup:
    """The events as JSON that no name can leave.

    ``packed`` holds, lane by lane, each event's start (from the one before, the first of a lane
    from ``base``), duration, wait, label, operation (0 is none) and count; then of each operation
    its kind, size and transfer, both one more than they are, 0 where unknown.
    """
    base = int(events.start.min())
    in_lanes = np.append(0, np.flatnonzero(np.diff(events.lane)) + 1)
    since = np.diff(events.start, prepend=base)
    since[in_lanes] = events.start[in_lanes] - base
    numbers, operation = np.unique(events.operation, return_inverse=True)
    none = int(numbers.size > 0 and numbers[0] == -1)
    labels, label = _common(events)
    kinds, columns = _operations(run, numbers[none:])
    data: dict[str, Any] = {
        "base": str(base),
        "span": int(events.end.max()) - base,
        "lanes": [
            [*events.lanes[lane], int(count)]
            for lane, count in zip(*np.unique(events.lane, return_counts=True), strict=True)
        ],
        "labels": labels,
        "operations": int(numbers.size - none),
        "kinds": kinds,
        "steps": [[step.number, step.start_ns - base, step.end_ns - base] for step in steps],
        "packed": packed(
            [
                since,
                events.end - events.start,
                events.waited - events.start,
                label,
                operation.astype(np.int64) + (1 - none),
                events.count,
                *columns,
            ]
        ),
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _common(events: Events) -> tuple[list[list[Any]], Int64]:
    """The labels that are used, at most so many: of the others only the kind is left."""
    used, label = np.unique(events.label, return_inverse=True)
    time = np.bincount(label, weights=events.end - events.start)
    rare = np.argsort(-time)[_MOST_LABELS:]
    shown = [
        [_KINDS.index(kind), cut(clean(name, 1000), _LETTERS) if name else kind]
        for kind, name in (events.labels[number] for number in used.tolist())
    ]
    for number in rare.tolist():
        shown[number][1] = _KINDS[shown[number][0]]
    return shown, label.astype(np.int64)


def _operations(run: Measures, numbers: Int64) -> tuple[list[str], list[Int64]]:
    """What these operations are, in words, and of each its kind, size and transfer."""
    every = operations(run)
    table = every.take(np.searchsorted(every.ints("operation"), numbers))
    code, values = numbered_values(table, "op", "dtype", "group")
    kinds = [_words(*one) for one in values]
    more = (np.maximum(table.ints(name), -1) + 1 for name in ("size_bytes", "transfer_ns"))
    return kinds, [code, *more]


def _words(op: str | None, dtype: str | None, group: str | None) -> str:
    named = None if group is None else f"group {group}"
    parts = [op or "communication", *(its for its in (dtype, named) if its is not None)]
    return " · ".join(clean(part, 60) for part in parts)
