"""What to ask of programs whose communication nothing hides: that compute runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.comms import element_bytes
from commtrace.metrics.rank.exposed_calls import Called
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.waits import matched
from commtrace.rules._less import small

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["overlapped"]

_HALF_BYTES = 2  # of an element in half precision
_DDP = "other bucket sizes (bucket_cap_mb), static_graph=True"
_SHARDED = "smaller units or buckets: less is then left when backward ends"


def overlapped(run: Measures, calls: Called, op: str, *, starved: bool) -> str:
    """What to do about an operation, by how many of its calls hold up their device."""
    count, held = len(calls.phase), int((~calls.asynchronous).sum())
    if starved:
        return (
            f"{op} runs asynchronously already, but the compute after it was not launched yet: "
            "see to the host first, which launches too late"
        )
    rows = np.flatnonzero(run.rows("collectives").coded("op").being(op))
    if held or not count:
        which = f"the {held} of {count} {op} that hold up their device"
        if _mostly_of_tensors(run, rows):
            return (
                f"the next operator needs what tensor parallelism's {op} yields: overlap it in "
                "chunks with the matmul beside it (async tensor parallelism, --tp-comm-overlap), "
                "or split layers over fewer ranks"
            )
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


def _mostly_of_tensors(run: Measures, rows: Int64) -> bool:
    """Whether most of the time of these rows of ``collectives`` is tensor parallelism's."""
    its = dimensions_of(run, matched(run).matches.coded("communicator").take(rows)).being("tp")
    duration_ns = run.rows("collectives", rows).ints("duration_ns")
    return bool(2 * duration_ns[its].sum() > duration_ns.sum())


def _in_half(run: Measures, rows: Int64) -> bool:
    """Whether all of these rows of ``collectives`` are known to be of half precision or less."""
    dtype = run.rows("collectives", rows).coded("dtype")
    halves = dtype.where(lambda name: element_bytes(name) <= _HALF_BYTES)
    return rows.size > 0 and bool(halves.all())
