"""Broadcasts with which DDP makes the buffers of its module alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import Bool, integers
from commtrace.comms import DDP_FORWARD

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.packed import Packed

__all__ = ["of_buffers"]


def of_buffers(run: Measures, rows: pd.DataFrame | Packed) -> Bool:
    """Which rows of ``collectives`` are broadcasts before any other call in DDP's forward pass.

    DDP sends there what its module has registered as buffers, unless ``broadcast_buffers=False``.
    """
    forward = run.steps[run.steps["label"] == DDP_FORWARD]
    moment = rows["launch_ns"].fillna(rows["start_ns"]).to_numpy(np.int64)
    rank, broadcast = integers(rows["rank"]), (rows["op"] == "broadcast").to_numpy()
    found = np.zeros(len(rows), dtype=np.bool_)
    for one, passes in forward.groupby("rank"):
        mine = np.flatnonzero(rank == one)
        mine = mine[np.argsort(moment[mine], kind="stable")]
        start = np.sort(passes["start_ns"].to_numpy(np.int64))
        end = np.sort((passes["start_ns"] + passes["duration_ns"]).to_numpy(np.int64))
        at = np.searchsorted(start, moment[mine], side="right") - 1
        within = (at >= 0) & (moment[mine] < end[at])
        mine, at = mine[within], at[within]
        others = pd.Series(~broadcast[mine]).groupby(at).cumsum().to_numpy()
        found[mine[others == 0]] = True
    return found
