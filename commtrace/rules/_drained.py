"""What compute hides of communication, if its host waits for the device in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, rows_by
from commtrace.intervals import Intervals, covered, inside, subtract, union
from commtrace.measures import measure
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.rank.exposed_calls import rows_of_operation
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["between_waits_ns"]

_WAITS = "Synchronize"
_EVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@measure
def between_waits_ns(run: Measures, op: str) -> float | None:
    """How much that is exposed compute between the same two waits could hide, on the median GPU.

    Of an operation, and of all in its groups: what queues behind it is hidden with it. What is used
    before the host reads a result has to be there by then, however early it was called for: of text
    that is generated, every token's compute needs all parameters. None without GPUs.
    """
    every, each = run.rows("collectives"), []
    groups = every.coded("group").take(rows_of_operation(run, op)).occurring()
    calls = every.take(every.coded("group").where(groups.__contains__))
    place = calls.ints("rank"), calls.coded("device")
    for (rank, device), at in rows_by(*place).items():
        ran = device_activity(run).get(Device(rank, device))
        if device == "cpu" or ran is None or ran.compute is None:
            continue
        bounds = np.concatenate((_EVER[:1], _drained(run, rank, ran.busy), _EVER[1:]))
        exposed = subtract(union(*calls.take(at).when()), ran.compute)
        free = subtract(ran.compute, ran.communication)
        both = (covered(bounds[:-1], bounds[1:], its) for its in (exposed, free))
        each.append(int(np.minimum(*both).sum()))
    return median(each) if each else None


def _drained(run: Measures, rank: int, busy: Intervals) -> Int64:
    """When the host had waited for a device until nothing ran on it."""
    calls = rows_of_rank(run, "blocking_calls", rank)
    calls = calls.take(calls.coded("name").where(lambda name: name.endswith(_WAITS)))
    start_ns, end_ns = calls.when()
    waited = (covered(start_ns, end_ns, busy) > 0) & ~inside(end_ns, busy)
    return np.sort(end_ns[waited])
