"""How long a training program multiplies matrices in double precision, on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.json import decode

from commtrace.measures import measure
from commtrace.metrics.run.first_operators import first_operators
from commtrace.metrics.run.whole import trains

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
    if not trains(run) or (its := first_operators(run)) is None:
        return 0
    products = its.name.where(_PRODUCTS.__contains__) & its.types.where(_is_double)
    return int(its.time_ns[products].sum())


def _is_double(types: str) -> bool:
    known = decode(types) or []
    return bool(known) and known[0] == "double"
