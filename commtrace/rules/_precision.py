"""In which precision a run's matrix kernels compute, as far as their names show it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import sums
from commtrace.kernels import MATRIX
from commtrace.metrics.rank.rows_of import blocks

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["DOUBLE", "HALF", "of_matrices", "share_in"]

HALF = r"bf16|f16|fp16|float16|half|hgemm|[hs]884|[hs]16816|e4m3|e5m2|fp8"
SINGLE = r"sgemm|s1688|f32|fp32|float"
DOUBLE = r"dgemm|d884|f64|fp64|double"


def of_matrices(run: Measures) -> Mapping[str, int]:
    """The time of matrix kernels by name, of those whose names show a precision."""
    shown = "|".join((HALF, SINGLE, DOUBLE))
    time = Counter[str]()
    for its in blocks(run, "kernels"):
        name = its.coded("name")
        named = np.flatnonzero(its.coded("kind").being("compute") & name.known)
        number, duration = name.codes[named].astype(np.int64), its.ints("duration_ns")[named]
        times = sums(number, duration, len(name.names)).tolist()
        time.update(dict(zip(name.names, times, strict=True)))
    return {name: its for name, its in time.items() if _has(name, MATRIX) and _has(name, shown)}


def _has(name: str, pattern: str) -> bool:
    return re.search(pattern, name, re.IGNORECASE) is not None


def share_in(time: Mapping[str, int], precision: str) -> float | None:
    """The share of a precision in the matrix kernels' time, None if no name shows one."""
    known = sum(time.values())
    return (
        sum(its for name, its in time.items() if _has(name, precision)) / known if known else None
    )
