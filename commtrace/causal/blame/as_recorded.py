"""Whether suspects are late only while their hosts are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.causal.blame.search import Suspects
from commtrace.causal.blame.suspects import edit_of
from commtrace.causal.edits.own_pace import unrecorded_pace
from commtrace.causal.edits.run_edits import as_measured, saved_by
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import work_with

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["mostly_recorded"]

_MOSTLY = 2 / 3  # of what they save while hosts are recorded


def mostly_recorded(run: Measures, who: Suspects, saved_ns: float) -> bool:
    """Whether they save much more while hosts are recorded than the ``saved_ns`` else.

    Where hosts compute themselves all that they do takes less time then, and so do steps: it counts
    of such a step.
    """
    its = unrecorded_pace(run)
    if its is None:
        return False
    part = _MOSTLY * (its.times if run_graph(run).calls.on_cpu.all() else 1.0)
    lag = as_measured(run)
    recorded_ns = float(saved_by(run, lag, [edit_of(run, who, lag, work_with(run, lag))]).sum())
    return saved_ns < part * recorded_ns
