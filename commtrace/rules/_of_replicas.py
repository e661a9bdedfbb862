"""What data parallelism has exposed, where most else of it is needed at once."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, distinct
from commtrace.causal.edits.run_edits import as_measured, saved_by, without_waits
from commtrace.causal.replay.graph import changes
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, saving
from commtrace.metrics.rank.exposed_calls import exposed_ns
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._drained import between_waits_ns

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OfReplicas", "of_replicas"]

_DATA = re.compile(r"(?:^|_)(?:dp|fsdp|ddp)(?:_|$)")
_LARGE_BYTES = 1_000_000  # statistics, which layers need at once, are less
_GATHERED = (
    "gather what the optimizer has updated bucket by bucket, each before forward first uses it, "
    "while forward computes (Megatron-LM: --overlap-param-gather; FSDP: prefetch)"
)
_REDUCED = (
    "start the reduction of each bucket as soon as backward has made its gradients, and wait "
    "before the optimizer's step (Megatron-LM: --overlap-grad-reduce; DDP and FSDP do so)"
)
_ADVICE = {"all_gather": _GATHERED, "all_reduce": _REDUCED, "reduce_scatter": _REDUCED}


class OfReplicas(Struct, frozen=True, eq=False):
    """An operation of data parallelism: its rows, how long it is exposed, what hiding it saves."""

    op: str
    rows: Int64
    exposed_ns: float
    gain: Saving

    @property
    def advice(self) -> str:
        """How to hide it."""
        return _ADVICE[self.op]


def of_replicas(run: Measures, min_step_share: float) -> OfReplicas | None:
    """The operation of data parallelism that is most worth hiding; None if none is.

    Of GPUs' large ones, and of all_gathers where it also reduce_scatters. What the replayed run
    saves if nobody waits for it before its step ends, at most what of it is exposed on the mean
    rank, and what computes between two waits of the host.
    """
    calls = run_graph(run).calls
    if calls.on_cpu.any():
        return None
    its = run.rows("collectives", calls.row)
    dimensions = dimensions_of(run, matched(run).matches.coded("communicator").take(calls.row))
    of_data = dimensions.where(lambda name: bool(_DATA.search(name)))
    of_data &= its.ints("size_bytes") >= _LARGE_BYTES
    waits = {name: its.coded("op").being(name) & of_data for name in _ADVICE}
    if not waits["reduce_scatter"].any():
        del waits["all_gather"]
    lag_ns = as_measured(run)
    edits = [changes(lag_ns, without_waits(run, which, lag_ns)) for which in waits.values()]
    each = saved_by(run, lag_ns, edits).sum(axis=0).tolist()
    (name, which), saved_ns = max(zip(waits.items(), each, strict=True), key=lambda its: its[1])
    if not worth_reporting(saved_ns, run, min_step_share):
        return None
    rows = calls.row[which].astype(np.int64)
    exposed = float(exposed_ns(run, rows).sum() / distinct(calls.rank).size)
    gain = saving(run, partial(without_waits, run, which), exposed, min_step_share)
    gain = gain.at_most(round(exposed), run)
    between = between_waits_ns(run, name) if name == "all_gather" else None
    gain = gain.at_most(None if between is None else round(between), run)
    if not worth_reporting(gain.cost_ns, run, min_step_share):
        return None
    return OfReplicas(name, rows, exposed, gain)
