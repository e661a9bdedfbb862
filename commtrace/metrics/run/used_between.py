"""Whether something ran between two operations that can have used the first's result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.arrays import Bool, rows_by
from commtrace.metrics.rank.rows_of import blocks

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["MOVES", "used_between"]

_FOREVER = np.iinfo(np.int64).max
MOVES = ("as_strided", "chunk", "copy_", "detach", "empty", "narrow", "select", "slice", "view")
"""Operators that make nothing: on a CPU the backend itself moves what it received to its place."""
_WHEN = ["rank", "device", "start_ns", "end_ns", "launch_ns"]
_TIMES = ["rank", "device", "start_ns", "duration_ns", "launch_ns"]


def used_between(run: Measures, operations: pd.DataFrame, both: pd.DataFrame) -> Bool:
    """For each row of two operations of one rank and group, whether anything used the first.

    It can have, and have fed the second, if it was launched between the two, began after
    the first ended and ended before the second began: a kernel, a copy, an operator on the
    CPU, or one of the ``operations`` of another group, which have the columns of
    ``collectives``, ``communicator`` and ``end_ns``; so has ``both``, and those of the second
    with the suffix ``_second``. Of a reduce with a known root only what its root does counts:
    the others hold no sum.
    """
    used = np.zeros(len(both), np.bool_)
    if both.empty:
        return used
    places = rows_by(both["rank"], both["device"], both["communicator"])
    for work in _work(run, operations):
        by_device = rows_by(work["rank"], work["device"])
        for (rank, device, communicator), at in places.items():
            if (rank, device) not in by_device:
                continue
            mine = work.iloc[by_device[rank, device]]
            if "communicator" in mine:
                mine = mine[mine["communicator"] != communicator]
            used[at] |= _any_inside(both.iloc[at], mine)
    elsewhere = (both["root"] != both["rank"]).fillna(False).to_numpy(np.bool_)
    return used & ~elsewhere


def _any_inside(both: pd.DataFrame, work: pd.DataFrame) -> Bool:
    """Operations of one group follow each other, so that work can be between one pair only."""
    order = np.argsort(both["end_ns"].to_numpy(), kind="stable")
    free = both["end_ns"].to_numpy()[order]
    near = np.searchsorted(free, work["start_ns"].to_numpy(), side="right") - 1
    work, near = work[near >= 0], near[near >= 0]
    after = _launch(both["launch_ns"], 0)[order][near]
    before = _launch(both["launch_ns_second"], _FOREVER)[order][near]
    launched = work["launch_ns"].fillna(work["start_ns"]).to_numpy(np.int64)
    unknown = work["launch_ns"].isna().to_numpy()
    inside = (
        (work["end_ns"].to_numpy() <= both["start_ns_second"].to_numpy()[order][near])
        & (unknown | ((launched >= after) & (launched <= before)))
    )  # fmt: skip
    found = np.zeros(len(both), np.bool_)
    found[order[near[inside]]] = True
    return found


def _launch(launch: pd.Series[Any], unknown: int) -> npt.NDArray[np.int64]:
    return launch.fillna(unknown).to_numpy(np.int64)


def _work(run: Measures, operations: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """What may use data, one kind at a time, as ``_WHEN``."""
    for kernels in blocks(run, "kernels", [*_TIMES, "kind"]):
        yield _when(kernels[kernels["kind"] == "compute"])
    for copies in blocks(run, "copies", [*_TIMES, "kind"]):
        yield _when(copies[copies["kind"] != "Memset"])
    ops = run.ops[run.ops["kind"] == "compute"]
    ops = ops[~ops["name"].isin([f"aten::{name}" for name in MOVES])]
    yield _when(ops.assign(device="cpu", launch_ns=ops["start_ns"].astype("Int64")))
    yield operations[[*_WHEN, "communicator"]]


def _when(events: pd.DataFrame) -> pd.DataFrame:
    return events.assign(end_ns=events["start_ns"] + events["duration_ns"])[_WHEN]
