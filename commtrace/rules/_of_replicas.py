"""What data parallelism has exposed, where most else of it is needed at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64
from commtrace.causal.edits.run_edits import as_measured, saved_by, without_waits
from commtrace.causal.replay.graph import changes
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, saving
from commtrace.metrics.rank.exposed_calls import exposed_ns
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OfReplicas", "of_replicas"]

_DATA = frozenset({"dp", "fsdp"}).__contains__
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

    What the replayed run saves if nobody waits for it before its step ends, at most what of it is
    exposed on the mean rank.
    """
    calls = run_graph(run).calls
    op = run.rows("collectives", calls.row).coded("op")
    dimensions = dimensions_of(run, matched(run).matches.coded("communicator").take(calls.row))
    waits = {name: op.being(name) & dimensions.where(_DATA) for name in _ADVICE}
    lag_ns = as_measured(run)
    edits = [changes(lag_ns, without_waits(run, its, lag_ns)) for its in waits.values()]
    each = saved_by(run, lag_ns, edits).sum(axis=0).tolist()
    (name, which), saved_ns = max(zip(waits.items(), each, strict=True), key=lambda its: its[1])
    if not worth_reporting(saved_ns, run, min_step_share):
        return None
    rows = calls.row[which].astype(np.int64)
    exposed = float(exposed_ns(run, rows).sum() / np.unique(calls.rank).size)
    gain = saving(run, partial(without_waits, run, which), exposed, min_step_share)
    gain = gain.at_most(round(exposed), run)
    if not worth_reporting(gain.cost_ns, run, min_step_share):
        return None
    return OfReplicas(name, rows, exposed, gain)
