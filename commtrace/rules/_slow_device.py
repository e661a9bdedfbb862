"""GPUs that are slower than others at what is the same on all."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import codes, distinct
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["slower_at_updates"]

_UPDATES = re.compile(r"(?i)adam|multi_tensor_apply|fused_?(?:sgd|adagrad|lamb)")
_OTHERS = 2  # ranks to compare with
_SLOWER = 1.05
_ALIKE = 1.02  # times the others' median: as much as the slowest of them takes


def slower_at_updates(run: Measures, ranks: Collection[int]) -> float | None:
    """How many times as long as on the others' GPUs updates of parameters take on some ranks'.

    They are the same however large batches are. None where one of these is hardly slower, the
    others differ as well, or ranks run unlike ones.
    """
    kernels = run.rows("kernels")
    its = kernels.take(kernels.coded("name").where(lambda name: bool(_UPDATES.search(name))))
    every = distinct(its.ints("rank"))
    place, name = np.searchsorted(every, its.ints("rank")), codes(its.coded("name").codes)
    shape = every.size, int(name.max(initial=-1)) + 1
    cell, size = place * shape[1] + name, shape[0] * shape[1]
    count = np.bincount(cell, minlength=size).reshape(shape)
    mine = np.isin(every, list(ranks))
    if mine.sum() < len(ranks) or (~mine).sum() < _OTHERS or (count != count[0]).any():
        return None
    took_ns = np.bincount(cell, its.ints("duration_ns"), size).reshape(shape).sum(axis=1)
    usual_ns = median(took_ns[~mine])
    alike = took_ns[~mine].max() <= _ALIKE * usual_ns
    times = float(took_ns[mine].min() / usual_ns)
    return times if alike and times >= _SLOWER else None
