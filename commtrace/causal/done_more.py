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

__all__ = ["DoneMore", "done_more", "operators_of"]


class DoneMore(NamedTuple):
    """Of each cause the time; the call that most of it is before, and the cause of most.

    In all steps, or in those in which they stall.
    """

    parts_ns: dict[Cause, float]
    call: int
    cause: Cause | None
    stalls: tuple[int, ...]


def done_more(run: Measures, who: Suspects, stalls: tuple[int, ...] = ()) -> DoneMore:
    """In all steps, or where they stall: in the others they may do something else."""
    number, its = run_graph(run).calls.step, None
    if stalls:
        its = np.isin(number, np.unique(number)[list(stalls)])
    parts, call = excess(run, who.ranks, its)
    if who.made == "idle":
        parts = {**parts, "compute": 0.0}
    return DoneMore(parts, call, cause_of(run, who.ranks, parts), stalls)


def operators_of(run: Measures, who: Suspects, does: DoneMore) -> OwnOperators | None:
    """The operators that others do not run, if they are most of what these do more."""
    if does.cause is None or does.call < 0:
        return None
    found = own_operators(run, who.ranks, does.call, does.stalls)
    steps = len(does.stalls) or run_graph(run).step_ns.size
    longer_ns = does.parts_ns[does.cause] / (steps * len(who.ranks))
    return found if found is not None and found.explains(does.cause, longer_ns) else None
