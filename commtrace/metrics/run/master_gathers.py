"""all_gathers of float32 masters, of which the program keeps a copy in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.metrics.run.used_gathers import copied_gathers
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["master_gathers"]

_HALVES = ("bfloat16", "float16")
_HALF_BYTES, _SINGLE_BYTES = 2, 4
_REDUCTIONS = ("all_reduce", "reduce_scatter")


def master_gathers(run: Measures) -> Int64:
    """The numbers of the float32 all_gathers on CPUs that look like those of masters.

    What they bring is copied at once, and the same group reduces as many elements in half
    precision: gradients of parameters that are of that type. No trace's table has the copy's type.
    """
    every, gathers = matched(run).operations, copied_gathers(run).operations
    size, half = every.ints("size_bytes"), every.coded("dtype").where(_HALVES.__contains__)
    half &= every.coded("op").where(_REDUCTIONS.__contains__) & (size != NULL)
    reduced = set(
        zip(
            every.coded("communicator").take(np.flatnonzero(half)).decoded(),
            (size[half] // _HALF_BYTES).tolist(),
            strict=True,
        )
    )
    gathers = gathers.take(gathers.coded("dtype").being("float32"))
    elements = (gathers.ints("size_bytes") // _SINGLE_BYTES).tolist()
    groups = gathers.coded("communicator").decoded()
    same = [pair in reduced for pair in zip(groups, elements, strict=True)]
    found: Int64 = gathers.ints("operation")[np.asarray(same, dtype=np.bool_)]
    return found
