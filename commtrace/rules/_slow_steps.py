"""Steps in which all that a group of GPUs communicates takes longer than in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Float64, Int64, distinct, grouped
from commtrace.metrics.run.bandwidth import hidden, on_gpus
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, quantile
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
    step = _steps(run)[its.ints("operation")]
    its, step = its.take(step != NULL), step[step != NULL]
    found = (_of_group(run, its.take(at), step[at]) for at in grouped(its.coded("communicator")))
    return [one for one in found if one is not None]


def _of_group(run: Measures, its: Rows, step: Int64) -> SlowSteps | None:
    steps = distinct(step)
    kinds = grouped(*(its.columns[name] for name in ("op", "dtype", "size_bytes")))
    relative = np.full(step.size, np.nan)
    transfer = its.ints("transfer_ns").astype(np.float64)
    for at in kinds:
        each = np.array([median(transfer[at][step[at] == one]) for one in distinct(step[at])])
        relative[at] = transfer[at] / median(each)  # of steps, whichever have more of it
    level = np.array([median(relative[step == one]) for one in steps])
    slow = level > _TIMES
    count = np.array([(step == one).sum() for one in steps])
    if steps.size < _LEAST_STEPS or not 0 < 2 * slow.sum() < steps.size or count.min() < _EACH:
        return None
    mine = np.isin(step, steps[slow])
    ratio = median(relative[mine]) / median(relative[~mine])
    beside = hidden(its, run)
    apart = quantile(relative[mine], 0.1) > _TIMES * quantile(relative[~mine], 0.9)
    if not apart or median(beside[mine]) - median(beside[~mine]) > _MORE_COMPUTE:
        return None
    beyond = (transfer[mine] * (1 - 1 / ratio)).clip(min=0)
    return SlowSteps(its.take(mine), beyond, ratio, tuple(steps[slow].tolist()), int((~slow).sum()))


def _steps(run: Measures) -> Int64:
    """The step of each operation; NULL of none."""
    number = matched(run).waits.ints("operation")
    step = np.full(1 + int(number.max(initial=-1)), NULL)
    np.maximum.at(step, number, run.rows("collectives").ints("step"))
    return step
