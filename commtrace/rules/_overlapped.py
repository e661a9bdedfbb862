"""What to ask of programs whose communication nothing hides: that compute runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, least, most
from commtrace.comms import DDP_FORWARD
from commtrace.metrics.rank.exposed_calls import Called, exposed_ns, rows_of_operation
from commtrace.metrics.rank.phases import launching_threads, phases
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.whole import has_steps
from commtrace.quantiles import median
from commtrace.rules._at_once import is_hidden, whose
from commtrace.rules._backward import REDUCTIONS, of_backward
from commtrace.rules._less import OF_SHARDS, fused, in_half, sharded, small
from commtrace.rules._one_dimension import of_one_dimension, of_same_groups
from commtrace.units import mb, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = [
    "gathers_parameters",
    "in_one_bucket",
    "of_gradients_late",
    "overlapped",
    "starts_late",
]

_DDP = "other bucket sizes (bucket_cap_mb), static_graph=True"
_SHARDED = "smaller units or buckets: less is then left when backward ends"
_REPLICATED = (
    "fewer all_reduces over the replicas of HSDP: accumulate gradients, and all_reduce them only "
    "in the last micro-batch (FSDP2: set_requires_all_reduce)"
)
_SHARDING_LABELS = ("FSDP::", "FullyShardedDataParallel")

_AT_ONCE = {
    "tensor parallelism": "overlap it in chunks with the matmul beside it (async tensor "
    "parallelism, --tp-comm-overlap), or split layers over fewer ranks",
    "expert parallelism": "overlap it with work that does not need it (shared experts, another "
    "micro-batch), or spread experts over fewer ranks",
    "pipeline parallelism": "let each stage have another micro-batch to work on meanwhile (more of "
    "them, or a schedule that interleaves several stages on each rank), and see whether stages or "
    "links are uneven",
}
"""Whose operations' results are needed at once, and what to do about these."""
_PREFETCH = "gather parameters earlier: prefetch those of the next layers"
_WAYS = (
    ("FSDP1", "forward_prefetch=True", "backward_prefetch=BACKWARD_PRE"),
    ("FSDP2", "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"),
)
_ZERO = "ZeRO-3: stage3_prefetch_bucket_size"
_KEEP = ", or keep them after forward where memory allows (reshard_after_forward=False)"
_FSDP_REDUCES = (
    "FSDP calls reduce_scatter itself, as soon as backward has made a unit's gradients: reduce "
    "them less often (set_requires_gradient_sync(False) for all micro-batches but the last)"
)
_GATHERS = "FSDP::all_gather"
_FSDP1 = "FullyShardedDataParallel.forward"
_ONE_UNIT = (
    "FSDP shards the model as one unit, so that nothing is left to compute beside its gather: "
    "shard its blocks, too (fully_shard each before the model; FSDP1: auto_wrap_policy), so that "
    "the next one's parameters come while one computes"
)
_BARRIER = (
    "leave the barrier out, unless it orders something outside communication: until the last comes "
    "all others do nothing"
)
_REDUCE_DTYPE = ", or in fewer bytes (MixedPrecisionPolicy's reduce_dtype)"
_NO_PARAMETERS = (
    "; if these are activations, as a graph's nodes or a sequence's keys, send each rank only the "
    "part that it needs (all_to_all)"
)
_LITTLE = 0.25  # of what is exposed
_WRAP = (
    "wrap larger modules (fully_shard a block, not each of its layers): most of so small "
    "all_gathers is latency; "
)
_PAIRED = (
    "; where it is of activations that are gathered (tensor parallelism), let a row-wise layer "
    "follow each column-wise one: one all_reduce does for both"
)
_GRADIENTS_BYTES = 1_000_000  # of a step
_ONE_BUCKET = 0.9  # of the bytes: nothing is left to run beside it
_REST = 0.05  # of backward: what the last gradients are made with, and packed
_SCALARS = 1e-5  # of the largest call's bytes
_TWICE = 1.5  # all_gathers for a reduce_scatter: in forward, and again in backward


def overlapped(run: Measures, calls: Called, op: str, *, starved: bool) -> str:
    """What to do about an operation, by how many of its calls hold up their device."""
    count, held = len(calls.phase), int((~calls.asynchronous).sum())
    if starved:
        return (
            f"{op} runs asynchronously already, but the compute after it was not launched yet: "
            "see to the host first, which launches too late"
        )
    if op == "barrier":
        return _BARRIER
    if op in OF_SHARDS and _is_one_unit(run):
        return _ONE_UNIT
    rows = rows_of_operation(run, op)
    if fused(run.rows("collectives", rows)):
        return (
            f"{op} is overlapped in chunks with its matmul already: larger matmuls, or fewer ranks "
            "in the group, hide more of it"
        )
    at_once = held or not count or not is_hidden(run, op)
    if at_once and (needs := whose(run, op)) is not None:
        return _AT_ONCE[needs]
    if gathers_parameters(run, op):
        return (_WRAP if small(run, [op]) else "") + _prefetch(run, calls, rows)
    launched = rows[run.rows("collectives", rows).ints("launch_ns") != NULL]
    large = _are_large(run, launched if launched.size else rows)
    of_backward = count > 0 and bool(calls.phase.being("backward")[large].all())
    # What backward's own thread calls when it is over holds up nothing that it could run beside.
    if held and not of_backward and of_gradients_late(run, op):
        return (
            f"{op} when backward is over hides behind nothing: start one for each bucket of "
            "gradients as they are ready, as DDP does (register_post_accumulate_grad_hook, "
            "async_op=True), and wait before the optimizer's step"
        )
    if held and op == "reduce_scatter" and _is_labelled(run):
        return _FSDP_REDUCES + ("" if in_half(run, rows) else _REDUCE_DTYPE)
    if not count or (held and not (of_backward and starts_late(run, rows))):
        which = f"the {held} of {count} {op} that hold up their device"
        return (
            f"start {which if 0 < held < count else op} asynchronously and wait for it only "
            "where its result is used; the trace does not show whether compute needs it at once"
        )
    if of_backward and not _is_of_layers(run, op, rows):
        least = in_half(run, rows) or small(run, [op])
        fewer = "" if least else ", or fewer bytes (bf16 gradients)"
        left = _left(run, rows[_are_large(run, rows)])
        return f"{op} runs asynchronously{left}: try {_options(run, op)}{fewer}"
    return (
        f"{op} runs asynchronously already: start it earlier, wait for it later, or send fewer "
        "bytes; the trace does not show whether compute needs it at once"
        f"{_PAIRED if of_backward else ''}"
    )


def _are_large(run: Measures, rows: Int64) -> Bool:
    """Which of these calls are no scalars beside the others, as norms."""
    size = run.rows("collectives", rows).ints("size_bytes")
    large: Bool = size >= _SCALARS * size.max(initial=0)
    return large


def _is_of_layers(run: Measures, op: str, rows: Int64) -> bool:
    """Whether what backward all_reduces is of the sizes of what is gathered, and as often.

    So are activations that tensor parallelism gathers, of a program that uses no DDP, nor shards.
    """
    calls = run.rows("collectives")
    labels = run.rows("steps").coded("label").occurring()
    if op != "all_reduce" or any(
        its.startswith((DDP_FORWARD, *_SHARDING_LABELS)) for its in labels
    ):
        return False
    each = (rows_of_operation(run, "all_gather"), rows)
    gathered, reduced = (np.sort(calls.ints("size_bytes")[its]) for its in each)
    return rows.size > 0 and np.array_equal(gathered, reduced)


def gathers_parameters(run: Measures, op: str) -> bool:
    """Whether an operation gathers what ranks keep parts of, in forward and again in backward."""
    gathers = int(run.rows("collectives").coded("op").being(op).sum())
    return op == "all_gather" and sharded(run) and gathers >= _TWICE * _scatters(run)


def _prefetch(run: Measures, calls: Called, rows: Int64) -> str:
    """What to do about gathers of parameters, in the passes in which they are exposed."""
    exposed = exposed_ns(run, rows)
    share = float(exposed[calls.phase.being("backward")].sum() / max(int(exposed.sum()), 1))
    backward = share > _LITTLE
    meant = slice(0 if share < 1 - _LITTLE else 1, 2 if backward else 1)
    ways = [f"{name}: {' and '.join(each[meant])}" for name, *each in _WAYS]
    said = f"{_PREFETCH} ({'; '.join((*ways, _ZERO))}){_KEEP if backward else ''}"
    return said if _is_labelled(run) else said + _NO_PARAMETERS


def starts_late(run: Measures, rows: Int64) -> bool:
    """Whether next to nothing is left of backward when the first of a step's calls is made.

    That is, of what other threads than the steps' own have computed in the step, as backward has
    its own on GPUs, or of what the calls' thread has; the first rank tells.
    """
    calls = run.rows("collectives", rows)
    if not rows.size or not has_steps(run):
        return False
    rank = int(calls.ints("rank")[0])
    mine = (calls.ints("rank") == rank) & (calls.ints("step") != NULL)
    mine &= calls.ints("launch_ns") != NULL
    kernels = rows_of_rank(run, "kernels", rank)
    computes = of_backward(kernels, rows_of_rank(run, "steps", rank))
    if not computes.any():
        computes = kernels.coded("kind").being("compute") & (kernels.ints("launch_ns") != NULL)
        its_thread = launching_threads(run).values()[rows[mine]]
        computes &= np.isin(kernels.ints("thread"), its_thread)
    kernels = kernels.take(computes & np.isin(kernels.ints("step"), calls.ints("step")[mine]))
    numbers, of = np.unique(calls.ints("step")[mine], return_inverse=True)
    first = least(of, calls.ints("launch_ns")[mine], numbers.size)
    late = kernels.ints("launch_ns") > first[np.searchsorted(numbers, kernels.ints("step"))]
    time_ns = kernels.ints("duration_ns")
    return bool(time_ns[late].sum() <= _REST * time_ns.sum()) and time_ns.size > 0


def of_gradients_late(run: Measures, op: str) -> bool:
    """Whether an operation is a program's own reduction of its gradients, when backward is over.

    Of as many bytes as gradients have, and with nothing reduced while backward runs: else it is of
    something else, as the norm of what was reduced.
    """
    if op not in REDUCTIONS:
        return False
    calls = run.rows("collectives")
    rows = of_one_dimension(run, rows_of_operation(run, op))
    reduces = calls.coded("op").where(REDUCTIONS.__contains__) & phases(run).being("backward")
    reduces &= of_same_groups(run, rows)
    if reduces.any():
        return False
    its = run.rows("collectives", rows)
    size, step = its.ints("size_bytes").clip(min=0), codes(its.ints("rank"), its.ints("step"))
    if not rows.size or median(np.bincount(step, size)) < _GRADIENTS_BYTES:
        return False
    return starts_late(run, rows)


def in_one_bucket(run: Measures, op: str) -> bool:
    """Whether an operation reduces nearly all of a step in one call, so that none runs beside it.

    That hides nothing however few its bytes are.
    """
    if op not in REDUCTIONS:
        return False
    return _largest(run.rows("collectives", rows_of_operation(run, op)))[0] > _ONE_BUCKET


def _left(run: Measures, rows: Int64) -> str:
    """What is left of calls in backward that run asynchronously."""
    calls = run.rows("collectives", rows)
    if not starts_late(run, rows):
        share, most = _largest(calls)
        one = f", {percent(share, 1)} of the bytes in one call a step, of {mb(most)}"
        return (
            f" already{one if share > _ONE_BUCKET else ''}; what is left is exposed after backward"
        )
    if np.bincount(codes(calls.ints("rank"), calls.ints("step"))).max() == 1:
        size = mb(median(calls.ints("size_bytes")))
        return f", but there is one a step, of {size}, when backward is over"
    return (
        ", but all start when backward is over, none as its gradients are ready (Megatron-LM: "
        "--overlap-grad-reduce)"
    )


def _largest(calls: Rows) -> tuple[float, float]:
    """What share of a step's bytes its largest call sends, and how much that is, in the median."""
    its = calls.take((calls.ints("size_bytes") > 0) & (calls.ints("step") != NULL))
    if not len(its):
        return 0.0, 0.0
    step, size = codes(its.ints("rank"), its.ints("step")), its.ints("size_bytes")
    largest = most(step, size, int(step.max()) + 1)
    return median(largest / np.bincount(step, size)), median(largest)


def _options(run: Measures, op: str) -> str:
    """What the library that calls it in backward lets programs choose."""
    if op != "all_reduce":
        return _SHARDED
    return _REPLICATED if _is_labelled(run) else _DDP


def _is_labelled(run: Measures) -> bool:
    """Whether FSDP's own ranges are in the trace."""
    labels = run.rows("steps").coded("label").occurring()
    return any(its.startswith(_SHARDING_LABELS) for its in labels)


def _is_one_unit(run: Measures) -> bool:
    """Whether FSDP gathers for the model as a whole only: each unit below has a label of its own.

    https://github.com/pytorch/pytorch/blob/main/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py
    With FSDP1 the forward pass of each unit below is a range within the model's.
    """
    steps = run.rows("steps")
    labels = steps.coded("label").occurring()
    if _GATHERS in labels:
        return not any(its.startswith(f"{_GATHERS} (") for its in labels)
    passes = steps.take(steps.coded("label").being(_FSDP1))
    start = passes.ints("start_ns")
    in_order = np.lexsort((start, passes.ints("rank")))
    rank, start = passes.ints("rank")[in_order], start[in_order]
    end = start + passes.ints("duration_ns")[in_order]
    within = (rank[1:] == rank[:-1]) & (start[1:] < end[:-1])
    return start.size > 0 and not within.any()


def _scatters(run: Measures) -> int:
    return int(run.rows("collectives").coded("op").being("reduce_scatter").sum())
