"""What to say of operations that could be one: how large they are, and how to send them so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import distinct
from commtrace.comms import DDP_FORWARD
from commtrace.metrics.run.called_in import in_backward
from commtrace.metrics.run.whole import profiler_steps
from commtrace.rules._less import OF_SHARDS, sharded
from commtrace.units import counted, mb, ms, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.rules._small_rows import SmallRows
    from commtrace.table import Rows

__all__ = ["follow_one_another", "sent_together"]

_OF_AUTOGRAD = (
    "on gloo the gradient of torch.distributed.nn's all_gather and all_to_all is a scatter from "
    "each rank in turn: all_gather_tensor_autograd (torch.distributed._functional_collectives) "
    "has one reduce_scatter; what needs no gradient can be gathered without"
)
_LARGER_UNITS = (
    "gather and reduce parameters in fewer, larger units: shard whole blocks, not each small "
    "module (FSDP); leave small parameters whole (DeepSpeed's stage3_param_persistence_threshold) "
    "and use larger buckets"
)
_DELAYED = 1.5  # times the usual time: latency explains no such saving


def follow_one_another(run: Measures, its: Rows, kinds: Sequence[SmallRows]) -> str:
    """What is to be said of operations of one name, of one or several groups alike."""
    most = max(kinds, key=lambda kind: kind.estimate_ns)
    taken = _time_taken(most.share, most.latency.ns, most.mean_ns, most.latency.assumed)
    what = f"{counted(len(its), str(its.coded('op').at(0)))} of {_sizes(its)} each"
    left = len(its) - sum(kind.fewer for kind in kinds)
    if not left:
        return f"{what} are of units far smaller than others, and {taken}: none is needed"
    at_most = "at most " * any(kind.paused for kind in kinds)
    would = f"{what} follow one another, and {taken}: {at_most}{left} would do"
    steps = distinct(profiler_steps(run).ints("step")).size
    if steps < 2:
        return would
    return f"{would}, {max(round(left / steps), 1)} in place of {len(its) / steps:.0f} in each step"


def _sizes(its: Rows) -> str:
    """The bytes that each of these operations has, or the least and the most."""
    size = its.ints("size_bytes")
    least, most = mb(float(size.min())), mb(float(size.max()))
    return most if least == most else f"{least} to {most}"


def _time_taken(share: float, latency_ns: float, mean_ns: float, assumed: str = "") -> str:
    """What share of their time is latency; with the mean, where much else delays some.

    ``assumed`` says from what, unless that is measured.
    """
    each = f"{ms(latency_ns)} each{f', assumed {assumed}' if assumed else ''}"
    if mean_ns * share <= _DELAYED * latency_ns:
        return f"{percent(share, 1)} of their time is latency ({each})"
    return (
        f"{percent(share, 1)} of their median time is latency ({each}; "
        f"{ms(mean_ns)} in the mean, with what delays some)"
    )


def sent_together(run: Measures, its: Rows) -> str:
    """How such operations, of one kind, are sent together."""
    labels, op = run.rows("steps").coded("label").occurring(), its.coded("op").at(0)
    if op == "broadcast" and any("ZeroRedundancyOptimizer.step" in label for label in labels):
        return (
            "construct ZeroRedundancyOptimizer with parameters_as_bucket_view=True: it sends "
            "buckets in place of parameters"
        )
    if op in OF_SHARDS and sharded(run):
        return _LARGER_UNITS
    behind = bool(np.isin(its.ints("operation"), in_backward(run)).any())
    if op == "scatter" and behind:
        return _OF_AUTOGRAD
    if op == "all_reduce" and behind and DDP_FORWARD in labels:
        return (
            "send them together: flatten the tensors, use a coalescing manager, or raise DDP's "
            "bucket_cap_mb"
        )
    return "send them together: flatten the tensors, or use a coalescing manager"
