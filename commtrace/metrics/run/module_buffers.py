"""Broadcasts with which DDP makes the buffers of its module alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, distinct
from commtrace.comms import DDP_FORWARD

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["of_buffers"]


def of_buffers(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``collectives`` are broadcasts before any other call in DDP's forward pass.

    DDP sends there what its module has registered as buffers, unless ``broadcast_buffers=False``.
    """
    steps = run.rows("steps")
    forward = steps.take(steps.coded("label").being(DDP_FORWARD))
    starts, ends = forward.when()
    launch = rows.ints("launch_ns")
    moment = np.where(launch == NULL, rows.ints("start_ns"), launch)
    rank, broadcast = rows.ints("rank"), rows.coded("op").being("broadcast")
    found = np.zeros(len(rows), dtype=np.bool_)
    for one in distinct(forward.ints("rank")).tolist():
        mine = np.flatnonzero(rank == one)
        mine = mine[np.argsort(moment[mine], kind="stable")]
        passes = forward.ints("rank") == one
        start, end = np.sort(starts[passes]), np.sort(ends[passes])
        at = np.searchsorted(start, moment[mine], side="right") - 1
        within = (at >= 0) & (moment[mine] < end[at])
        mine, at = mine[within], at[within]
        # Within a pass the calls are in order: all before its first other one are buffers'.
        other = np.cumsum(~broadcast[mine])
        before = np.append(0, other)[np.searchsorted(at, at)]
        found[mine[other == before]] = True
    return found
