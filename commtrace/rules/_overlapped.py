"""What to ask of programs whose communication nothing hides: that compute runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.comms import element_bytes
from commtrace.metrics.rank.exposed_calls import Called
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.waits import matched
from commtrace.rules._less import fused, sharded, small

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["needed_at_once", "overlapped"]

_HALF_BYTES = 2  # of an element in half precision
_DDP = "other bucket sizes (bucket_cap_mb), static_graph=True"
_SHARDED = "smaller units or buckets: less is then left when backward ends"


_AT_ONCE = {
    "tp": "the next operator needs what tensor parallelism's {} yields: overlap it in chunks with "
    "the matmul beside it (async tensor parallelism, --tp-comm-overlap), or split layers over "
    "fewer ranks",
    "ep": "the next operator needs what expert parallelism's {} yields: overlap it with work that "
    "does not (shared experts, another micro-batch), or spread experts over fewer ranks",
}
"""Dimensions whose operations' results are needed at once, and what to do about these."""
_PREFETCH = (
    "gather parameters earlier: prefetch those of the next layers (FSDP1: forward_prefetch=True; "
    "FSDP2: set_modules_to_forward_prefetch; ZeRO-3: stage3_prefetch_bucket_size), or keep them "
    "after forward where memory allows (reshard_after_forward=False)"
)
_TWICE = 1.5  # all_gathers for a reduce_scatter: in forward, and again in backward


def needed_at_once(run: Measures, calls: Called, op: str | None) -> str | None:
    """The dimension of an operation that nothing but its result can follow; None if unknown.

    Calls that nothing runs beside, most of the time in groups of such a dimension.
    """
    if calls.asynchronous.all() and len(calls.phase):
        return None
    rows = np.flatnonzero(run.rows("collectives").coded("op").being(op or ""))
    return next((name for name in _AT_ONCE if _mostly(run, rows, name)), None)


def overlapped(run: Measures, calls: Called, op: str, *, starved: bool) -> str:
    """What to do about an operation, by how many of its calls hold up their device."""
    count, held = len(calls.phase), int((~calls.asynchronous).sum())
    if starved:
        return (
            f"{op} runs asynchronously already, but the compute after it was not launched yet: "
            "see to the host first, which launches too late"
        )
    rows = np.flatnonzero(run.rows("collectives").coded("op").being(op))
    if fused(run.rows("collectives", rows)):
        return (
            f"{op} is overlapped in chunks with its matmul already: larger matmuls, or fewer ranks "
            "in the group, hide more of it"
        )
    if (dimension := needed_at_once(run, calls, op)) is not None:
        return _AT_ONCE[dimension].format(op)
    if op == "all_gather" and sharded(run) and rows.size >= _TWICE * _scatters(run):
        return _PREFETCH
    if held or not count:
        which = f"the {held} of {count} {op} that hold up their device"
        return (
            f"start {which if 0 < held < count else op} asynchronously and wait for it only "
            "where its result is used; the trace does not show whether compute needs it at once"
        )
    if calls.phase.being("backward").all():
        least = _in_half(run, rows) or small(run, [op])
        fewer = "" if least else ", or fewer bytes (bf16 gradients)"
        return (
            f"{op} runs asynchronously already; what is left is exposed after backward: try "
            f"{_DDP if op == 'all_reduce' else _SHARDED}{fewer}"
        )
    return (
        f"{op} runs asynchronously already: start it earlier, wait for it later, or send fewer "
        "bytes; the trace does not show whether compute needs it at once"
    )


def _scatters(run: Measures) -> int:
    return int(run.rows("collectives").coded("op").being("reduce_scatter").sum())


def _mostly(run: Measures, rows: Int64, dimension: str) -> bool:
    """Whether most of the time of these rows of ``collectives`` is of such groups."""
    its = dimensions_of(run, matched(run).matches.coded("communicator").take(rows)).being(dimension)
    duration_ns = run.rows("collectives", rows).ints("duration_ns")
    return bool(2 * duration_ns[its].sum() > duration_ns.sum())


def _in_half(run: Measures, rows: Int64) -> bool:
    """Whether all of these rows of ``collectives`` are known to be of half precision or less."""
    dtype = run.rows("collectives", rows).coded("dtype")
    halves = dtype.where(lambda name: element_bytes(name) <= _HALF_BYTES)
    return rows.size > 0 and bool(halves.all())
