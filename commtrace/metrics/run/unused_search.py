"""Whether DDP searches in each pass for parameters that it did not use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, codes, distinct
from commtrace.comms import DDP_FORWARD

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["searches_unused"]

_LEAST_BYTES = 16


def searches_unused(run: Measures) -> bool:
    """Whether each step in which ranks with DDP all_reduce has one of int32: a map of parameters.

    As with ``find_unused_parameters=True``, which walks the whole graph behind each forward pass.
    It has four bytes for each parameter: scalars are none, nor is what differs in size.
    """
    if not run.rows("steps").coded("label").being(DDP_FORWARD).any():
        return False
    calls = run.rows("collectives")
    sums = calls.take(calls.coded("op").being("all_reduce") & (calls.ints("step") != NULL))
    place = codes(sums.ints("rank"), sums.ints("step"))
    size = sums.ints("size_bytes")
    maps = sums.coded("dtype").being("int32") & (size >= _LEAST_BYTES)
    if distinct(size[maps]).size > 1:
        return False
    return bool(maps.any() and np.isin(distinct(place), place[maps]).all())
