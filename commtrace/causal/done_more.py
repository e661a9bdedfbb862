"""What suspects do more than is typical, in every step or where they stall."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.causal.causes import cause_of, excess
from commtrace.causal.own_operators import OwnOperators, own_operators
from commtrace.causal.run_graph import run_graph
from commtrace.causal.search import Suspects
from commtrace.diagnosis import Cause

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["DoneMore", "done_more"]


class DoneMore(NamedTuple):
    """Of each cause the time; the call that most of it is before, and the cause of most.

    ``operators`` are those that others do not run, if they are most of it.
    """

    parts_ns: dict[Cause, float]
    call: int
    cause: Cause | None
    operators: OwnOperators | None


def done_more(run: Measures, who: Suspects, stalls: tuple[int, ...] = ()) -> DoneMore:
    """In all steps, or in some: in the others they may do something else."""
    number, its = run_graph(run).calls.step, None
    if stalls:
        its = np.isin(number, np.unique(number)[list(stalls)])
    parts, call = excess(run, who.ranks, its)
    if who.made == "idle":
        parts = {**parts, "compute": 0.0}
    cause = cause_of(run, who.ranks, parts)
    operators = own_operators(run, who.ranks, call, stalls) if cause and call >= 0 else None
    if cause and operators is not None:
        steps = len(stalls) or run_graph(run).step_ns.size
        if not operators.explains(cause, parts[cause] / (steps * len(who.ranks))):
            operators = None
    return DoneMore(parts, call, cause, operators)
