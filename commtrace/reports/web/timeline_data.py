"""What the script of the timeline reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import Int64, integers
from commtrace.metrics.run.waits import operations
from commtrace.reports.web.markup import Markup
from commtrace.reports.web.packed import packed
from commtrace.units import clean, cut

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.reports.web.thinned import Events

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
    table = operations(run).set_index("operation").reindex(numbers)
    code = integers(table.groupby(["op", "dtype", "group"], observed=True, dropna=False).ngroup())
    _, first = np.unique(code, return_index=True)
    words = table[["op", "dtype", "group"]].iloc[first].astype(object)
    kinds = [_words(*one) for one in words.itertuples(index=False, name=None)]
    return kinds, [code, *(_one_more(table[name]) for name in ("size_bytes", "transfer_ns"))]


def _words(op: Any, dtype: Any, group: Any) -> str:
    parts = [op if isinstance(op, str) else "communication"]
    parts += [dtype] if isinstance(dtype, str) else []
    parts += [f"group {group}"] if isinstance(group, str) else []
    return " · ".join(clean(part, 60) for part in parts)


def _one_more(column: pd.Series[Any]) -> Int64:
    return np.maximum(integers(column.fillna(-1).astype("Int64")), -1) + 1
