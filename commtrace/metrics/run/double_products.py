"""How much a program computes in double precision, on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.json import decode

from commtrace.comms import is_communication_call
from commtrace.measures import measure
from commtrace.metrics.run.first_operators import first_operators
from commtrace.metrics.run.whole import trains

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["double_products_ns", "double_share"]

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("addmm", "baddbmm", "bmm", "convolution", "convolution_backward", "mm")
)
_CONVERTS = frozenset(f"aten::{name}" for name in ("_to_copy", "clone", "copy_", "to"))
_DOUBLE = frozenset(("double", "c10::complex<double>"))
_FLOATING = _DOUBLE | {"float", "c10::complex<float>", "c10::BFloat16", "c10::Half"}


@measure
def double_share(run: Measures) -> float | None:
    """Of the time of the first rank's operators on floating numbers the share in double precision.

    Neither converting nor communication counts. None where shapes were not recorded.
    """
    its = first_operators(run)
    if its is None:
        return None
    its = its.take(its.name.where(_computes))
    floating = its.types.where(lambda types: _first(types) in _FLOATING)
    every_ns = int(its.time_ns[floating].sum())
    double_ns = int(its.time_ns[its.types.where(_is_double)].sum())
    return double_ns / every_ns if every_ns else None


@measure
def double_products_ns(run: Measures) -> int:
    """For how long the first rank multiplied matrices of float64; 0 if that is unknown.

    Of programs that train, as an optimizer's label shows: solvers need their digits.
    """
    if not trains(run) or (its := first_operators(run)) is None:
        return 0
    products = its.name.where(_PRODUCTS.__contains__) & its.types.where(_is_double)
    return int(its.time_ns[products].sum())


def _computes(name: str) -> bool:
    return name not in _CONVERTS and not is_communication_call(name)


def _is_double(types: str) -> bool:
    return _first(types) in _DOUBLE


def _first(types: str) -> str:
    known = decode(types) or [""]
    return str(known[0])
