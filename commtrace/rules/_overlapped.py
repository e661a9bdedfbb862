"""What to ask of programs whose communication nothing hides: that compute runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes
from commtrace.comms import DDP_FORWARD
from commtrace.metrics.rank.exposed_calls import Called, rows_of_operation
from commtrace.quantiles import median
from commtrace.rules._at_once import is_hidden, whose
from commtrace.rules._behind_waits import behind_waits
from commtrace.rules._late_reductions import (
    ONE_BUCKET,
    largest_call,
    of_gradients_late,
    starts_late,
)
from commtrace.rules._less import OF_SHARDS, fused, in_half, small
from commtrace.rules._parameter_gathers import (
    ONE_UNIT,
    SHARDING_LABELS,
    gathers_parameters,
    is_labelled,
    is_one_unit,
    prefetch,
)
from commtrace.units import counted, mb, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["larger_buckets", "overlapped"]

_DDP = "other bucket sizes (bucket_cap_mb), static_graph=True"
_SHARDED = "smaller units or buckets: less is then left when backward ends"
_REPLICATED = (
    "fewer all_reduces over the replicas of HSDP: accumulate gradients, and all_reduce them only "
    "in the last micro-batch (FSDP2: set_requires_all_reduce)"
)
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
_FSDP_REDUCES = (
    "FSDP calls reduce_scatter itself, as soon as backward has made a unit's gradients: reduce "
    "them less often (set_requires_gradient_sync(False) for all micro-batches but the last)"
)
_BARRIER = (
    "leave the barrier out, unless it orders something outside communication: until the last comes "
    "all others do nothing"
)
_REDUCE_DTYPE = ", or in fewer bytes (MixedPrecisionPolicy's reduce_dtype)"
_PAIRED = (
    "; where it is of activations that are gathered (tensor parallelism), let a row-wise layer "
    "follow each column-wise one: one all_reduce does for both"
)
# Of DDP's a step; its own are of 25 MiB.
_MANY, _SMALL_BUCKET_BYTES, _LARGE_BUCKET_BYTES = 8, 4_000_000, 100_000_000
_BUCKET_BYTES, _FIRST_AND_LAST, _TIMES = 25_000_000, 2, 4
_SCALARS = 1e-5  # of the largest call's bytes


def overlapped(run: Measures, calls: Called, op: str, *, starved: bool) -> str:
    """What to do about an operation, by how many of its calls hold up their device."""
    if starved:
        return (
            f"{op} runs asynchronously already, but the compute after it was not launched yet: "
            "see to the host first, which launches too late"
        )
    if op == "barrier":
        return _BARRIER
    if op in OF_SHARDS and is_one_unit(run):
        return ONE_UNIT
    rows = rows_of_operation(run, op)
    if fused(run.rows("collectives", rows)):
        return (
            f"{op} is overlapped in chunks with its matmul already: larger matmuls, or fewer ranks "
            "in the group, hide more of it"
        )
    holds_none = len(calls.phase) > 0 and bool(calls.asynchronous.all())
    if not (holds_none and is_hidden(run, op)) and (needs := whose(run, op)) is not None:
        return _AT_ONCE[needs]
    first = behind_waits(run, rows)
    if gathers_parameters(run, op):
        return first + prefetch(run, calls)
    what = _sooner if holds_none else _asynchronously
    return first + what(run, calls, op, rows)


def _asynchronously(run: Measures, calls: Called, op: str, rows: Int64) -> str:
    """What to do about an operation some of whose calls hold up their device, or none is known."""
    count, held = len(calls.phase), int((~calls.asynchronous).sum())
    behind = _is_of_backward(run, calls)
    # What backward's own thread calls when it is over holds up nothing that it could run beside.
    if held and not behind and of_gradients_late(run, op):
        return (
            f"{op} when backward is over hides behind nothing: start one for each bucket of "
            "gradients as they are ready, as DDP does (register_post_accumulate_grad_hook, "
            "async_op=True), and wait before the optimizer's step"
        )
    if held and op == "reduce_scatter" and is_labelled(run):
        return _FSDP_REDUCES + ("" if in_half(run, rows) else _REDUCE_DTYPE)
    if behind and starts_late(run, rows):
        return _sooner(run, calls, op, rows)
    which = f"the {held:,} of {counted(count, op)} that hold up their device"
    return (
        f"start {which if 0 < held < count else op} asynchronously and wait for it only "
        "where its result is used; the trace does not show whether compute needs it at once"
    )


def _sooner(run: Measures, calls: Called, op: str, rows: Int64) -> str:
    """What to do about an operation that holds up nothing, and is exposed all the same."""
    behind = _is_of_backward(run, calls)
    if behind and not _is_of_layers(run, op, rows):
        least = in_half(run, rows) or small(run, [op])
        fewer = "" if least else ", or fewer bytes (bf16 gradients)"
        left = _left(run, rows[_are_large(run, rows)])
        return f"{op} runs asynchronously{left}: try {_options(run, op, rows)}{fewer}"
    return (
        f"{op} runs asynchronously already: start it earlier, wait for it later, or send fewer "
        "bytes; the trace does not show whether compute needs it at once"
        f"{_PAIRED if behind else ''}"
    )


def _is_of_backward(run: Measures, calls: Called) -> bool:
    """Whether all of these calls that are no scalars run in backward."""
    large = _are_large(run, calls.rows)
    return len(calls.phase) > 0 and bool(calls.phase.being("backward")[large].all())


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
    if op != "all_reduce" or any(its.startswith((DDP_FORWARD, *SHARDING_LABELS)) for its in labels):
        return False
    each = (rows_of_operation(run, "all_gather"), rows)
    gathered, reduced = (np.sort(calls.ints("size_bytes")[its]) for its in each)
    return rows.size > 0 and np.array_equal(gathered, reduced)


def _left(run: Measures, rows: Int64) -> str:
    """What is left of calls in backward that run asynchronously."""
    calls = run.rows("collectives", rows)
    if not starts_late(run, rows):
        share, most = largest_call(calls)
        one = f", {percent(share, 1)} of the bytes in one call a step, of {mb(most)}"
        return (
            f" already{one if share > ONE_BUCKET else ''}; what is left is exposed after backward"
        )
    if _in_each_step(calls).max() == 1:
        size = mb(median(calls.ints("size_bytes")))
        return f", but there is one a step, of {size}, when backward is over"
    return (
        ", but all start when backward is over, none as its gradients are ready (Megatron-LM: "
        "--overlap-grad-reduce)"
    )


def _in_each_step(calls: Rows) -> Int64:
    """How many each rank calls in each step; of a run without steps in all of it."""
    step = calls.ints("step")
    of_steps = step != NULL
    some = of_steps if of_steps.any() else ~of_steps
    return np.bincount(codes(calls.ints("rank")[some], step[some]))


def _options(run: Measures, op: str, rows: Int64) -> str:
    """What the library that calls it in backward lets programs choose."""
    if op != "all_reduce":
        return _SHARDED
    if is_labelled(run):
        return _REPLICATED
    calls = run.rows("collectives", rows)
    share, most = largest_call(calls)
    if share > ONE_BUCKET and most > _LARGE_BUCKET_BYTES:
        return "smaller buckets (bucket_cap_mb): a single one is full when backward is over"
    return larger_buckets(run, rows) or _DDP


def larger_buckets(run: Measures, rows: Int64) -> str:
    """That DDP's buckets could be larger, where a step has many small ones; empty else.

    Many for what they hold: of 25 MB, as they are by default, a quarter would do.
    """
    calls = run.rows("collectives", rows)
    each, sizes = _in_each_step(calls), calls.ints("size_bytes")
    count, size = median(each), median(sizes)
    in_step = count * float(sizes.clip(min=0).mean()) if len(calls) else 0.0
    many = max(_MANY, _TIMES * (in_step / _BUCKET_BYTES + _FIRST_AND_LAST))
    if is_labelled(run) or count < many or not 0 < size < _SMALL_BUCKET_BYTES:
        return ""
    return f"larger buckets (bucket_cap_mb: each step has {count:.0f}, of {mb(size)})"
