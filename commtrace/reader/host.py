"""Host events -> the tables of steps and operators."""

from __future__ import annotations

import re

import numpy as np

from commtrace import comms
from commtrace.arrays import NULL, Int64
from commtrace.nesting import begun_within, outermost
from commtrace.reader.json.events import Call, Hosted, Scan
from commtrace.table import Coded, Columns

__all__ = ["Steps", "beside_gpu", "operators", "step_ranges"]

_STEP = re.compile(rf"^{comms.STEP_PREFIX}(\d{{1,18}})$")


class Steps:
    """The ranges ``ProfilerStep#n`` of one rank's host.

    One behind the ``last`` had begun when the program ended: it is none.
    """

    def __init__(self, annotations: Hosted, last: int | None = None) -> None:
        matches = [_STEP.match(name) for name in annotations.name.names]
        numbers = [int(match[1]) if match else NULL for match in matches]
        past = [last is not None and number > last for number in numbers]
        self.unfinished = np.asarray(past, dtype=np.bool_)
        numbers = [NULL if is_past else n for n, is_past in zip(numbers, past, strict=True)]
        number = np.asarray([*numbers, NULL], dtype=np.int64)[annotations.name.codes]
        rows = np.flatnonzero(number != NULL)
        rows = rows[np.argsort(annotations.start_ns[rows], kind="stable")]
        self.number = number
        self._numbers = number[rows]
        self._starts = annotations.start_ns[rows]
        self._ends = self._starts + annotations.duration_ns[rows]

    def containing(self, times: Int64) -> Int64:
        """The number of the step that each time lies in; NULL outside any."""
        if self._starts.size == 0:
            return np.full(times.shape, NULL)
        at = np.maximum(np.searchsorted(self._starts, times, side="right") - 1, 0)
        inside = (self._starts[at] <= times) & (times < self._ends[at])
        return np.where(inside, self._numbers[at], NULL)


def step_ranges(scan: Scan, steps: Steps, rank: int) -> Columns:
    """The table of steps: profiler steps, and labelled ranges, but for waits."""
    ranges = scan.annotations
    is_call = [
        comms.is_communication_annotation(name) or name == comms.WAIT for name in ranges.name.names
    ]
    is_range = ~(np.asarray(is_call, dtype=np.bool_) | steps.unfinished)
    rows = np.flatnonzero(np.append(is_range, False)[ranges.name.codes])
    number, start_ns = steps.number[rows], ranges.start_ns[rows]
    is_step = number != NULL
    names = [ranges.name.names[code] for code in ranges.name.codes[rows].tolist()]
    return {
        "rank": np.full(rows.size, rank),
        "step": np.where(is_step, number, steps.containing(start_ns)),
        "label": Coded.of(
            [None if step else name for name, step in zip(names, is_step.tolist(), strict=True)]
        ),
        "thread": ranges.thread[rows],
        "start_ns": start_ns,
        "duration_ns": ranges.duration_ns[rows],
    }


def operators(scan: Scan, steps: Steps, rank: int) -> Columns:
    """The table of operators.

    Compute operators that no other encloses, where the scan holds operators; and the
    communication calls that no other communication call encloses, wherever they are.
    """
    every = scan.operators if scan.operators.thread.size else _hosted(scan.calls)
    is_call = [comms.is_communication_call(name) for name in every.name.names]
    communicates = np.asarray([*is_call, False], dtype=np.bool_)[every.name.codes]
    calls = np.flatnonzero(communicates)
    calls = calls[outermost(every.thread[calls], every.start_ns[calls], every.duration_ns[calls])]
    top = np.flatnonzero(outermost(every.thread, every.start_ns, every.duration_ns))
    rows = np.sort(np.concatenate((calls, top[~communicates[top]])))
    start_ns = every.start_ns[rows]
    if scan.operators.thread.size:
        count = begun_within(every.thread, every.start_ns, every.duration_ns)[rows]
    else:
        count = np.full(rows.size, NULL)
    return {
        "rank": np.full(rows.size, rank),
        "thread": every.thread[rows],
        "name": Coded(every.name.codes[rows], every.name.names),
        "kind": Coded(communicates[rows].astype(np.int32), ("compute", "communication")),
        "operators": count,
        "start_ns": start_ns,
        "duration_ns": every.duration_ns[rows],
        "step": steps.containing(start_ns),
    }


def beside_gpu(scan: Scan, steps: Steps, rank: int) -> Columns:
    """The table of the operators on the host of a GPU."""
    its = scan.beside_gpu
    return {
        "rank": np.full(its.thread.size, rank),
        "thread": its.thread,
        "name": its.name,
        "start_ns": its.start_ns,
        "duration_ns": its.duration_ns,
        "step": steps.containing(its.start_ns),
    }


def _hosted(calls: tuple[Call, ...]) -> Hosted:
    rows = [call for call in calls if call.category == "cpu_op"]
    return Hosted(
        Coded.of([call.name for call in rows]),
        np.asarray([call.thread for call in rows], dtype=np.int64),
        np.asarray([call.start_ns for call in rows], dtype=np.int64),
        np.asarray([call.duration_ns for call in rows], dtype=np.int64),
    )
