"""What a trace leaves open of exposed communication: whether it is waiting, or could be hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Int64
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.exposed_waits import exposed_waits
from commtrace.metrics.run.machines import machines
from commtrace.metrics.run.missing_ranks import missing_ranks
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Unsure", "may_wait", "why_unsure"]


_MOSTLY = 0.75  # of what is exposed


class Unsure(NamedTuple):
    """Why hiding it may save nothing, and what to do before that; empty where it is sure."""

    why: str = ""
    first: str = ""


_MISSING = Unsure(
    "some of it may be waiting for ranks without a trace file",
    "see with the files of all ranks whether one is late, for which all wait; if none is: ",
)
_UNMATCHED = Unsure(
    "most of it has no match on other ranks, and may be waiting for these",
    "record which ranks take part (commtrace record does, newer versions of PyTorch do), and see "
    "whether one is late, for which all wait; if none is: ",
)
_FROM_ANY = Unsure(
    _UNMATCHED.why,
    "nothing tells the sender of what is received from any rank (recv without src): see first "
    "whether whoever answers is late, as a server; if it is not: ",
)
_WAITING = Unsure(
    "most of it is waiting for other ranks, and nothing tells whether cores were idle",
    "make the ranks' work alike in each step (batches of equal length); of what is left: ",
)
_UNKNOWN_CORES = Unsure(
    "nothing tells whether cores were idle; if none was, hiding it saves nothing"
)


def may_wait(run: Measures, operations: Int64) -> Unsure:
    """Why it is not sure that these operations are no waiting for ranks that nobody knows of."""
    its = matched(run).operations
    mine = its.take(np.isin(its.ints("operation"), operations))
    expected, present = mine.ints("expected"), mine.ints("present")
    lacking = (expected == NULL) | (present < expected)
    if missing_ranks(run) and 2 * lacking.sum() >= len(mine):
        return _MISSING
    if len(run.rows("ranks")) > 1 and 2 * (present == 1).sum() > len(mine):
        received = mine.coded("op").being("recv").any() and machines(run)  # recorded by commtrace
        return _FROM_ANY if received else _UNMATCHED
    return Unsure()


def why_unsure(run: Measures, operations: Int64) -> Unsure:
    """Why it is not sure that compute beside these operations would save time."""
    if (unsure := may_wait(run, operations)).why:
        return unsure
    on_cpu = run.rows("collectives").coded("device").being("cpu")
    if machines(run) or not on_cpu.any() or not on_cpu.all():
        return Unsure()
    return _WAITING if _waits(run) else _UNKNOWN_CORES


def _waits(run: Measures) -> bool:
    """Whether most of the exposed time is waiting for ranks that come later."""
    waits_ns = exposed_waits(run).ints("exposed_wait_ns")
    known = devices(run).ints("compute_ns") != NULL
    exposed_ns = devices(run).ints("exposed_communication_ns")[known]
    return waits_ns.size > 0 and median(waits_ns) > _MOSTLY * median(exposed_ns)
