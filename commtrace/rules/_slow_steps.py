"""Steps in which all that a group of GPUs communicates takes longer than in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Float64, Int64, codes, first_rows, grouped
from commtrace.metrics.run.bandwidth import hidden, on_gpus
from commtrace.metrics.run.joined_rows import steps_of_operations
from commtrace.quantiles import median, quantile, quantiles
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SlowSteps", "slow_steps"]

_LEAST_STEPS, _EACH = 3, 3  # operations in each
_TIMES = 1.5  # as long as in the others
_MORE_COMPUTE = 0.2  # of the operations' time beside compute: that may slow them


class SlowSteps(Struct, frozen=True, eq=False):
    """The ``operations`` of some ``steps``, and what each takes beyond those of the ``others``."""

    operations: Rows
    beyond_ns: Float64
    ratio: float
    steps: tuple[int, ...]
    others: int


def slow_steps(run: Measures, known: Rows) -> list[SlowSteps]:
    """Of each group's operations (SERVED) those of its slow steps, if these are fewer than others.

    Nearly all of them take half as long again as nearly all of the others, by their kinds: what
    varies from one to the next is no step's. Those of CPUs wait for cores as well.
    """
    its = known.take(on_gpus(known, run))
    step = steps_of_operations(run)[its.ints("operation")]
    its, step = its.take(step != NULL), step[step != NULL]
    relative, group = _relative(its, step), its.coded("communicator")
    cell = codes(group, step)
    level = quantiles(cell, relative, 50, int(cell.max(initial=-1)) + 1)[cell]
    maybe = np.isin(group.codes, group.codes[level > _TIMES])
    its, step, relative, level = its.take(maybe), step[maybe], relative[maybe], level[maybe]
    groups = grouped(its.coded("communicator"))
    found = (_of_group(run, its.take(at), step[at], relative[at], level[at]) for at in groups)
    return [one for one in found if one is not None]


def _relative(its: Rows, step: Int64) -> Float64:
    """What each operation takes by the median of steps of its kind, whichever have more of it."""
    kind = codes(*(its.columns[name] for name in ("communicator", "op", "dtype", "size_bytes")))
    cell, transfer = codes(kind, step), its.ints("transfer_ns").astype(np.float64)
    first = first_rows(cell)
    each = quantiles(cell, transfer, 50, first.size)
    usual = quantiles(kind[first], each, 50, int(kind.max(initial=-1)) + 1)
    relative: Float64 = transfer / usual[kind]
    return relative


def _of_group(
    run: Measures, its: Rows, step: Int64, relative: Float64, level: Float64
) -> SlowSteps | None:
    """The slow steps of one group, given what its operations take, and those of each one's step."""
    steps, first = np.unique(step, return_index=True)
    slow, count = level[first] > _TIMES, np.bincount(codes(step))
    if steps.size < _LEAST_STEPS or not 0 < 2 * slow.sum() < steps.size or count.min() < _EACH:
        return None
    mine = np.isin(step, steps[slow])
    transfer = its.ints("transfer_ns").astype(np.float64)
    ratio = float(median(relative[mine]) / median(relative[~mine]))
    beside = hidden(its, run)
    apart = quantile(relative[mine], 0.1) > _TIMES * quantile(relative[~mine], 0.9)
    if not apart or median(beside[mine]) - median(beside[~mine]) > _MORE_COMPUTE:
        return None
    beyond = transfer[mine] * (1 - 1 / ratio)
    return SlowSteps(its.take(mine), beyond, ratio, tuple(steps[slow].tolist()), int((~slow).sum()))
