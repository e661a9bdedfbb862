"""Gathers of parameters that ranks keep parts of: whether they are, and how to hide them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.metrics.rank.exposed_calls import Called, exposed_ns
from commtrace.rules._less import sharded, small

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "KEPT",
    "ONE_UNIT",
    "SHARDING_LABELS",
    "gathers_parameters",
    "is_labelled",
    "is_one_unit",
    "prefetch",
]

SHARDING_LABELS = ("FSDP::", "FullyShardedDataParallel")
"""What FSDP's own ranges begin with."""
_PREFETCH = "gather parameters earlier: prefetch those of the next layers"
_WAYS = (
    ("FSDP1", "forward_prefetch=True", "backward_prefetch=BACKWARD_PRE"),
    ("FSDP2", "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"),
)
_ZERO = "ZeRO-3: stage3_prefetch_bucket_size"
KEPT = "FSDP2: reshard_after_forward=False; FSDP1: ShardingStrategy.SHARD_GRAD_OP"
"""How parameters that forward gathered are kept for backward."""
_KEEP = f", or keep them after forward where memory allows ({KEPT})"
_GATHERS = "FSDP::all_gather"
_FSDP1 = "FullyShardedDataParallel.forward"
ONE_UNIT = (
    "FSDP shards the model as one unit, so that nothing is left to compute beside its gather: "
    "shard its blocks, too (fully_shard each before the model; FSDP1: auto_wrap_policy), so that "
    "the next one's parameters come while one computes"
)
"""What to do where that is so."""
_NO_PARAMETERS = (
    "; if these are activations, as a graph's nodes or a sequence's keys, send each rank only the "
    "part that it needs (all_to_all)"
)
_WRAP = (
    "wrap larger modules (fully_shard a block, not each of its layers): most of so small "
    "all_gathers is latency; "
)
_LITTLE = 0.25  # of what is exposed
_TWICE = 1.5  # all_gathers for a reduce_scatter: in forward, and again in backward


def gathers_parameters(run: Measures, op: str) -> bool:
    """Whether an operation gathers what ranks keep parts of.

    FSDP's labels say so; or it gathers in forward, and again in backward: half as much is reduced.
    """
    if op != "all_gather" or not sharded(run):
        return False
    gathers = int(run.rows("collectives").coded("op").being(op).sum())
    return gathers >= _TWICE * _scatters(run) or _has_label(run, _GATHERS)


def prefetch(run: Measures, calls: Called) -> str:
    """What to do about gathers of parameters, in the passes in which they are exposed."""
    exposed = exposed_ns(run, calls.rows)
    share = float(exposed[calls.phase.being("backward")].sum() / max(int(exposed.sum()), 1))
    backward = share > _LITTLE
    meant = slice(0 if share < 1 - _LITTLE else 1, 2 if backward else 1)
    ways = [f"{name}: {' and '.join(each[meant])}" for name, *each in _WAYS]
    wrap = _WRAP if small(run, ["all_gather"]) else ""
    said = f"{wrap}{_PREFETCH} ({'; '.join((*ways, _ZERO))}){_KEEP if backward else ''}"
    return said if is_labelled(run) else said + _NO_PARAMETERS


def is_labelled(run: Measures) -> bool:
    """Whether FSDP's own ranges are in the trace."""
    return _has_label(run, SHARDING_LABELS)


def _has_label(run: Measures, begins: str | tuple[str, ...]) -> bool:
    """Whether a range begins with one of these words."""
    labels = run.rows("steps").coded("label").occurring()
    return any(its.startswith(begins) for its in labels)


def is_one_unit(run: Measures) -> bool:
    """Whether FSDP gathers for the model as a whole only: each unit has a label of its own.

    https://github.com/pytorch/pytorch/blob/main/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py
    With FSDP1 the forward pass of each unit below is a range within the model's.
    """
    steps = run.rows("steps")
    labels = steps.coded("label").occurring()
    units = [its for its in labels if its == _GATHERS or its.startswith(f"{_GATHERS} (")]
    if units:
        return len(units) == 1
    passes = steps.take(steps.coded("label").being(_FSDP1))
    start = passes.ints("start_ns")
    in_order = np.lexsort((start, passes.ints("rank")))
    rank, start = passes.ints("rank")[in_order], start[in_order]
    end = start + passes.ints("duration_ns")[in_order]
    within = (rank[1:] == rank[:-1]) & (start[1:] < end[:-1])
    return start.size > 0 and not within.any()


def _scatters(run: Measures) -> int:
    return int(run.rows("collectives").coded("op").being("reduce_scatter").sum())
