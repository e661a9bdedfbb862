"""Communication whose result the next operator needs, and what shares a stream with compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, rows_by
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.rank.activity import stream_activity
from commtrace.metrics.rank.exposed_calls import (
    asynchronous,
    exposed_ns,
    most_exposed,
    rows_of_operation,
)
from commtrace.metrics.run.group_dimensions import dimensions_of, group_dimensions
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "DIMENSION",
    "beside_compute",
    "is_hidden",
    "mostly_needed_at_once",
    "needed_at_once",
    "on_callers_stream",
    "whose",
]

_HIDDEN = 0.25  # of an operation's time
DIMENSION = {"tensor parallelism": "tp", "expert parallelism": "ep", "pipeline parallelism": "pp"}
_IS_NEEDED = frozenset(DIMENSION.values()).__contains__


def mostly_needed_at_once(run: Measures) -> tuple[str, str] | None:
    """The operation that is exposed most, and whose it is, if nothing can follow but its result."""
    if not group_dimensions(run).coded("dimension").where(_IS_NEEDED).any():
        return None
    most, _ = most_exposed(run)
    its = most and whose(run, most)
    if not most or not its:
        return None
    calls = asynchronous(run, most)
    overlaps = most not in POINT_TO_POINT and len(calls.phase) and calls.asynchronous.all()
    # Functional collectives say that they are asynchronous, and what waits for them follows.
    return None if overlaps and is_hidden(run, most) else (most, its)


def is_hidden(run: Measures, op: str) -> bool:
    """Whether something of note of an operation's time runs beside compute."""
    rows = rows_of_operation(run, op)
    time_ns = run.rows("collectives", rows).ints("duration_ns").clip(min=0).sum()
    return bool(exposed_ns(run, rows).sum() < (1 - _HIDDEN) * time_ns)


def needed_at_once(run: Measures) -> Bool:
    """Which rows of ``collectives`` are of groups whose results the next operator needs."""
    return dimensions_of(run, matched(run).matches.coded("communicator")).where(_IS_NEEDED)


def on_callers_stream(run: Measures, op: str) -> bool:
    """Whether most of an operation's time is on streams of GPUs that compute, too."""
    rows = rows_of_operation(run, op)
    time_ns = run.rows("collectives", rows).ints("duration_ns")
    return bool(2 * time_ns[beside_compute(run, rows)].sum() > time_ns.sum())


def beside_compute(run: Measures, rows: Int64) -> Bool:
    """Which rows of ``collectives`` are on streams of GPUs that compute, too.

    So newer versions of PyTorch run what is called with ``async_op=False``.
    """
    calls = run.rows("collectives", rows)
    shared = np.zeros(len(calls), np.bool_)
    streams = rows_by(calls.ints("rank"), calls.coded("device"), calls.ints("stream"))
    for stream, done in stream_activity(run).items():
        computes = stream.device != "cpu" and done.compute is not None and done.compute[0].size
        if computes and stream in streams:
            shared[streams[stream]] = True
    return shared


def whose(run: Measures, op: str) -> str | None:
    """Of which such dimension most of an operation's exposed time is; None of none."""
    rows = rows_of_operation(run, op)
    its = dimensions_of(run, matched(run).matches.coded("communicator").take(rows))
    time_ns = exposed_ns(run, rows)
    for said, name in DIMENSION.items():
        if 2 * time_ns[its.being(name)].sum() > time_ns.sum():
            return said
    return None
