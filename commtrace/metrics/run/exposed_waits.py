"""How much of each device's exposed communication is waiting for other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL
from commtrace.intervals import subtract, total, union
from commtrace.measures import measure
from commtrace.metrics.rank.activity import calls_by_device, device_activity
from commtrace.metrics.run.arrivals import called_ns
from commtrace.metrics.run.waits import matched
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["EXPOSED_WAITS", "exposed_waits"]

EXPOSED_WAITS = Table(
    "exposed_waits",
    "one device of one rank whose compute is known, in the order of `devices`",
    (
        Column("rank", "int64", "The rank."),
        Column("device", "category", "torch's name, with the trace's own number: `cuda:0`, `cpu`."),
        Column(
            "exposed_wait_ns",
            "int64",
            "Exposed communication in which its operations waited for other ranks.",
            "ns",
        ),
    ),
)


@measure
def exposed_waits(run: Measures) -> Rows:
    """The waiting that no compute hides: EXPOSED_WAITS; waits that are not known count as none."""
    called, wait = run.rows("collectives"), matched(run).waits.ints("wait_ns")
    start, duration = called.ints("start_ns"), called.ints("duration_ns")
    until = np.where(wait == NULL, start, called_ns(called) + np.where(wait == NULL, 0, wait))
    until = until.clip(start, start + duration)
    rows = []
    for (rank, device), done in device_activity(run).items():
        if done.compute is None:
            continue
        at = calls_by_device(run)[rank, device]
        exposed = subtract(union(start[at], until[at]), done.compute)
        rows.append({"rank": rank, "device": device, "exposed_wait_ns": total(exposed)})
    return EXPOSED_WAITS.of_dicts(rows)
