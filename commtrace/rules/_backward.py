"""What backward computes on GPUs: all that reductions of gradients can hide behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, rows_by
from commtrace.intervals import subtract, total, union
from commtrace.metrics.rank.activity import Device, device_work
from commtrace.metrics.rank.exposed_calls import exposed_ns, most_exposed
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.whole import has_steps
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["REDUCTIONS", "Hideable", "backward_alone_ns", "hideable", "of_backward"]

REDUCTIONS = frozenset(("all_reduce", "reduce_scatter"))


def of_backward(kernels: Rows, steps: Rows) -> Bool:
    """Which kernels of a rank backward launched, which has threads of its own on GPUs.

    None where no other thread than those of the steps launched any.
    """
    own = steps.ints("thread")[~steps.coded("label").known]
    launched = kernels.coded("kind").being("compute") & (kernels.ints("launch_ns") != NULL)
    of: Bool = launched & ~np.isin(kernels.ints("thread"), own)
    return of


class Hideable(NamedTuple):
    """What backward computes with no communication beside it, and what is exposed of other calls.

    The median device's.
    """

    backward_ns: float
    others_ns: float

    @property
    def total_ns(self) -> float:
        """All that could hide."""
        return self.backward_ns + self.others_ns


def hideable(run: Measures) -> Hideable | None:
    """How much exposed communication could hide where it is mostly reductions in backward.

    What follows them is the optimizer, which needs them, and before them forward made what they
    reduce: they hide behind no more than what backward computes with no communication beside it.
    What is exposed of other calls counts in full. None where the most exposed are no such
    reductions, or nothing tells what backward computes.
    """
    op, _ = most_exposed(run)
    rows = run.rows("collectives")
    if op not in REDUCTIONS or not has_steps(run):
        return None
    reduces = rows.coded("op").being(op) & phases(run).being("backward")
    known = np.flatnonzero(rows.coded("op").known)
    exposed = exposed_ns(run, known)
    if 2 * exposed[reduces[known]].sum() < exposed.sum():
        return None
    exposed[reduces[known]] = 0
    calls = run.rows("collectives", known)
    at = rows_by(calls.ints("rank"), calls.coded("device"))
    backward = backward_alone_ns(run)
    if backward is None:
        return None
    others = [int(exposed[at.get(place, [])].sum()) for place in backward]
    return Hideable(median([*backward.values()]), median(others))


def backward_alone_ns(run: Measures) -> dict[Device, int] | None:
    """What backward computes on each device that communicates, with no communication beside it.

    None where nothing tells, or no device communicates.
    """
    backward: dict[Device, int] = {}
    for place, done in device_work(run).items():
        if done.compute is None or not done.communication[0].size:
            continue
        kernels = rows_of_rank(run, "kernels", place.rank)
        kernels = kernels.take(kernels.coded("device").being(place.device))
        kernels = kernels.take(of_backward(kernels, rows_of_rank(run, "steps", place.rank)))
        if not len(kernels):
            return None
        begun = kernels.ints("start_ns")
        computes = union(begun, begun + kernels.ints("duration_ns"))
        backward[place] = total(subtract(computes, done.communication))
    return backward or None
