"""Calls of a host that wait for its whole device: to synchronise it, or to free its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64
from commtrace.causal.edits.rank_edits import doing_nothing_within, not_waiting_within
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import Edit
from commtrace.intervals import union
from commtrace.metrics.rank.rows_of import rows_of_rank

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["DEVICE", "MEMORY", "DeviceCalls", "not_called"]

_BARRIER_NS = 1_000_000  # so soon such a barrier synchronises the device


class DeviceCalls(Struct, frozen=True):
    """Calls that wait for a whole device: their names, those of them that ``counts``; and words."""

    names: frozenset[str]
    counts: frozenset[str]
    counted: str
    what: str
    ruled_out: str
    advice: str

    def of(self, run: Measures, rank: int) -> Rows:
        """A rank's calls of these names."""
        calls = rows_of_rank(run, "blocking_calls", rank)
        its = calls.take(np.flatnonzero(calls.coded("name").where(self.names.__contains__)))
        return _but_of_barriers(run, rank, its)

    def rows(self, calls: Rows) -> Int64:
        """Which of them count."""
        return np.flatnonzero(calls.coded("name").where(self.counts.__contains__))

    def count(self, calls: Rows) -> int:
        """How many of them count."""
        return self.rows(calls).size


def _names(*functions: str) -> frozenset[str]:
    return frozenset(f"{api}{its}" for api in ("cuda", "hip") for its in functions)


DEVICE = DeviceCalls(
    names=_names("DeviceSynchronize"),
    counts=_names("DeviceSynchronize"),
    counted="synchronisations",
    what="and launches nothing until its device is done",
    ruled_out="reading results: copies to the host are other calls",
    advice="leave torch.cuda.synchronize() out of the step: Work.wait(), events and "
    "wait_stream() order streams without the host; time with CUDA events, read later",
)
MEMORY = DeviceCalls(
    names=_names("Free", "Malloc"),
    counts=_names("Free"),
    counted="calls that free memory",
    what="each of which waits for its device, and allocates as much anew",
    ruled_out="warming up: that frees nothing",
    advice="leave torch.cuda.empty_cache() out of the step; where nothing calls it memory is full "
    "or in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a smaller batch, or "
    "activation checkpointing",
)


def not_called(run: Measures, calls: Mapping[int, Rows]) -> Edit:
    """Each rank's host does not make these calls, nor waits for its device in them."""

    def edit(lag_ns: Lags) -> Int64:
        lag: Int64 = lag_ns.astype(np.int64)
        for rank, its in calls.items():
            when = union(*its.when())
            not_waiting_within(run, rank, when, lag)
            doing_nothing_within(run, rank, when, lag)
        return lag

    return edit


def _but_of_barriers(run: Measures, rank: int, calls: Rows) -> Rows:
    """A rank's synchronisations of a whole device, but for those of NCCL's older barriers."""
    ops = rows_of_rank(run, "ops", rank)
    ops = ops.take(np.flatnonzero(ops.coded("kind").being("communication")))
    ops = ops.take(np.argsort(ops.ints("start_ns"), kind="stable"))
    barrier = np.append(ops.coded("name").where(lambda name: "barrier" in name), False)
    last = np.searchsorted(ops.ints("start_ns"), calls.ints("start_ns")) - 1
    since = calls.ints("start_ns") - np.append(ops.ints("start_ns"), 0)[last]
    return calls.take(np.flatnonzero(~(barrier[last] & (since <= _BARRIER_NS))))
