"""How long a training program multiplies matrices in double precision, on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.json import decode

from commtrace.comms import OPTIMIZER_STEP
from commtrace.errors import TraceError
from commtrace.intervals import total, union
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.reader.json import operator_inputs

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["double_products_ns"]

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("addmm", "baddbmm", "bmm", "convolution", "convolution_backward", "mm")
)


@measure
def double_products_ns(run: Measures) -> int:
    """For how long the first rank multiplied matrices of float64; 0 if that is unknown.

    Of programs that train, as an optimizer's label shows: solvers need their digits.
    """
    file = file_of(run, min(run.rows("ranks").ints("rank").tolist()))
    trains = run.rows("steps").coded("label").where(lambda name: name.startswith(OPTIMIZER_STEP))
    if file is None or not trains.any():
        return 0
    try:
        its = operator_inputs(file)
    except TraceError:
        return 0
    rows = np.flatnonzero(its.name.where(_PRODUCTS.__contains__) & its.types.where(_is_double))
    return total(union(its.start_ns[rows], its.start_ns[rows] + its.duration_ns[rows]))


def _is_double(types: str) -> bool:
    known = decode(types) or []
    return bool(known) and known[0] == "double"
