"""What suspects do more than is typical, in every step or where they stall."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.causal.blame.causes import cause_of, excess_by_cause, most_before
from commtrace.causal.blame.search import Suspects
from commtrace.causal.blame.sure import more_surely_ns
from commtrace.causal.blame.suspects import beyond_typical
from commtrace.causal.edits.run_edits import of_ranks
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.extra import extra_ns
from commtrace.causal.work.inputs import Inputs, inputs
from commtrace.causal.work.own_operators import OwnOperators, own_operators
from commtrace.causal.work.segments import own_work
from commtrace.diagnosis import Cause
from commtrace.metrics.run.stages import other_stages
from commtrace.metrics.run.whole import has_steps

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["DoneMore", "counted_more", "done_more", "slower"]


class DoneMore(NamedTuple):
    """Of each cause the time; the call that most of it is before, and the cause of most.

    In all steps, or in those in which they stall.
    """

    parts_ns: dict[Cause, float]
    call: int
    cause: Cause | None
    stalls: tuple[int, ...]

    def longer_ns(self, run: Measures, ranks: int) -> float:
        """How much longer each of so many ranks takes for that cause, a step in the mean.

        A run without steps is one.
        """
        steps = len(self.stalls) or (run_graph(run).step_ns.size if has_steps(run) else 1)
        return self.parts_ns[self.cause] / (steps * ranks) if self.cause else 0.0


def done_more(run: Measures, who: Suspects, stalls: tuple[int, ...] = ()) -> DoneMore:
    """In all steps, or where they stall: in the others they may do something else."""
    its = np.isin(run_graph(run).step_of, stalls) if stalls else None
    parts = excess_by_cause(run, who.ranks, its)
    if who.made == "sure":
        mine = of_ranks(run, who.ranks)
        more = np.nan_to_num(more_surely_ns(run, who.ranks))
        parts["compute"] = float(extra_ns(run)[mine if its is None else mine & its].sum())
    else:
        more = beyond_typical(run, who.ranks, own_work(run))
    call = most_before(run, who.ranks, more, its)
    return DoneMore(parts, call, cause_of(run, who.ranks, parts), stalls)


def counted_more(run: Measures, who: Suspects, does: DoneMore) -> OwnOperators | Inputs | None:
    """The operators that others do not run, or on less, if they are most of what these do more."""
    if does.cause is None or does.call < 0:
        return None
    longer_ns = does.longer_ns(run, len(who.ranks))
    # Stages run unlike numbers of operators: what a host does between these need not be of them.
    between = does.cause == "host" and other_stages(run, who.ranks)
    own = own_operators(run, who.ranks, does.call, does.stalls)
    if own is not None and not between and own.explains(does.cause, longer_ns):
        return own
    if does.cause != "compute":
        return None
    its = inputs(run, who.ranks, does.call, does.stalls)
    if its is not None and its.is_more(longer_ns):
        return its
    own = own_operators(run, who.ranks, does.call, does.stalls, everywhere=True)
    return own if own is not None and own.explains(does.cause, longer_ns) else None


def slower(run: Measures, who: Suspects, does: DoneMore) -> float | None:
    """How many times as long as others these compute the same on the same, if that is most of it.

    Not counting waits for cores, if these are known: others may have taken as long with theirs.
    None where it is not, or is not known.
    """
    if does.cause != "compute" or does.call < 0:
        return None
    its = inputs(run, who.ranks, does.call, does.stalls)
    longer_ns = does.longer_ns(run, len(who.ranks))
    if its is None or not its.same:
        return None
    if its.is_slower(longer_ns):
        return its.time_ns / max(its.usual_ns, 1.0)
    # Ranks without steps of their own may show no operators in those of others.
    if own_work(run).waited_ns is None or its.time_ns <= longer_ns:
        return None
    return its.time_ns / (its.time_ns - longer_ns)
