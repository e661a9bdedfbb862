"""When DDP's reducer had waited for its buckets, which no label tells: it takes them apart then."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Bool, Int64
from commtrace.intervals import inside, union
from commtrace.reader.json.events import Hosted

__all__ = ["buckets_taken_apart"]

_COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_BEFORE = ("aten::as_strided", "aten::_local_scalar_dense")


def buckets_taken_apart(operators: Hosted, leaf: Bool, thread: int) -> Int64:
    """When a reducer on a thread began to copy each of its buckets to the parameters' gradients.

    It does so as soon as it has waited for it: it makes views of it, in newer releases, and copies
    each, with ``find_unused_parameters`` if a flag says that it was used. With
    ``gradient_as_bucket_view`` there is nothing to copy. ``leaf`` are the operators without others
    within.
    """
    mine = operators.thread == thread
    copies = mine & operators.name.being(_COPY_OUT)
    if not copies.any():
        return np.empty(0, np.int64)
    start, length = operators.start_ns[copies], operators.duration_ns[copies]
    copying = union(start, start + np.maximum(length, 1))
    rows = np.flatnonzero(mine & leaf)
    rows = rows[np.argsort(operators.start_ns[rows], kind="stable")]
    starts, is_view = operators.start_ns[rows], operators.name.where(_BEFORE.__contains__)[rows]
    copies_out = inside(starts, copying)
    first = np.flatnonzero(copies_out & ~np.append(False, copies_out[:-1]))
    # The first of the views before: behind the last that is none.
    last = np.maximum.accumulate(np.where(is_view, -1, np.arange(rows.size)))
    viewed = starts[np.append(-1, last)[first] + 1]
    start = np.sort(start)
    copied = start[np.searchsorted(start, starts[first], side="right") - 1]
    begun: Int64 = np.minimum(copied, viewed)
    return begun
