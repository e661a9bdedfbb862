"""What backward computes on GPUs: all that reductions of gradients can hide behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, distinct, rows_by
from commtrace.intervals import subtract, total, union
from commtrace.metrics.rank.activity import Device, device_activity
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
    reduce: they hide behind no more than what backward computes with no communication beside it,
    in the passes that reduce: of micro-batches often the last one's. What is exposed of other calls
    counts in full. None where the most exposed are no such reductions, or nothing tells what
    backward computes.
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
    backward = backward_alone_ns(run, np.flatnonzero(reduces))
    if backward is None:
        return None
    others = [int(exposed[at.get(place, [])].sum()) for place in backward]
    return Hideable(median([*backward.values()]), median(others))


def backward_alone_ns(run: Measures, within: Int64 | None = None) -> dict[Device, int] | None:
    """What backward computes on each device that communicates, with no communication beside it.

    Of passes in which some of the calls ``within`` are made, rows of ``collectives``, if these are
    given and any is. None where nothing tells, or no device communicates.
    """
    backward: dict[Device, int] = {}
    launched = _launched(run, within)
    for place, done in device_activity(run).items():
        if done.compute is None or not done.communication[0].size:
            continue
        kernels = rows_of_rank(run, "kernels", place.rank)
        kernels = kernels.take(kernels.coded("device").being(place.device))
        of = of_backward(kernels, rows_of_rank(run, "steps", place.rank))
        if not of.any():
            return None
        kernels = kernels.take(_in_passes(kernels, of, launched.get(place.rank)))
        computes = union(*kernels.when())
        backward[place] = total(subtract(computes, done.communication))
    return backward or None


def _launched(run: Measures, rows: Int64 | None) -> dict[int, Int64]:
    """When each rank called for these rows of ``collectives``, as far as that is known."""
    if rows is None:
        return {}
    calls = run.rows("collectives", rows)
    launch = calls.ints("launch_ns")
    return {
        one: launch[at][launch[at] != NULL] for (one,), at in rows_by(calls.ints("rank")).items()
    }


def _in_passes(kernels: Rows, of: Bool, called: Int64 | None) -> Bool:
    """Which kernels ``of`` backward were launched in passes with such calls; all if none were.

    Between two passes the program's own thread launches the next forward pass.
    """
    if called is None or not called.size:
        return of
    launch = kernels.ints("launch_ns")
    own = ~of & kernels.coded("kind").being("compute") & (launch != NULL)
    forward = np.sort(launch[own])
    passes = distinct(np.searchsorted(forward, called))
    mine: Bool = of & np.isin(np.searchsorted(forward, launch), passes)
    return mine if mine.any() else of
