"""Culprits that are a pipeline's stage: what it has to do more does not vanish, but is shared."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from commtrace.arrays import Int64
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.search import Suspects
from commtrace.causal.blame.suspects import edit_of
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.edits.run_edits import saved_by
from commtrace.causal.replay.graph import Change, Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.inputs import Inputs
from commtrace.causal.work.own_operators import OwnOperators, own_operators
from commtrace.causal.work.segments import own_work, work_on_cores
from commtrace.metrics.run.stages import other_stages, stages
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["shared_by_stages"]

_PART = 0.25  # of what the busiest stage does beyond the mean


def shared_by_stages(
    run: Measures, who: Suspects, it: Culprit, lag_ns: Lags
) -> tuple[Suspects, Culprit]:
    """The same; of a stage that does more with what is saved if all stages do as much.

    That is one that runs in nearly every step more operators than other stages, or on more. One
    that takes longer for the same is slow, and what no layer runs need not be shared: without that
    it does as the others.
    """
    own = it.more if isinstance(it.more, OwnOperators) else None
    does_more = isinstance(it.more, Inputs) or (
        own is not None and own.steady and not own.are_no_layers
    )
    if not does_more or it.cause != "compute" or not other_stages(run, who.ranks):
        return who, it
    it = _of_busy_stages(run, it)
    shared = structs.replace(who, ranks=it.ranks, made="shared")
    edit, steps = _tried(run, shared, lag_ns)
    if steps.sum() <= 0:
        return who, it
    before = undisturbed(run)
    alone = steps if lag_ns is before else _tried(run, shared, before)[1]
    longer = it.on_top_ns / max(int(who.steps_ns.sum()), 1)  # for waits for cores
    saved = np.rint(steps * longer).astype(np.int64)
    culprit = structs.replace(
        it,
        saved_ns=round(float(alone.sum()) * longer),
        on_top_ns=int(saved.sum()),
        replayed_step_ns=it.replayed_step_ns + int(median(it.steps_ns - saved)),
        steps_ns=saved,
        instead_ns=it.steps_ns,
    )
    return structs.replace(shared, edit=edit, steps_ns=steps), culprit


def _of_busy_stages(run: Measures, it: Culprit) -> Culprit:
    """The same without those of its stages that do hardly more than a stage in the mean.

    As a host's may be, where another of its stages has far more to do.
    """
    calls, own = run_graph(run).calls, own_work(run).own_ns.sum(axis=1)
    did = np.bincount(calls.rank, own)
    each = [float(np.mean(did[ranks])) for ranks in stages(run)]
    least = np.mean(each) + _PART * (max(each) - np.mean(each))
    busy = (ranks for ranks, its in zip(stages(run), each, strict=True) if its >= least)
    ranks = tuple(sorted(set(it.ranks) & set(chain.from_iterable(busy))))
    if not ranks or ranks == it.ranks:
        return it
    mine = np.flatnonzero(np.isin(calls.rank, ranks))
    call = int(mine[np.argmax(own[mine])])
    more = own_operators(run, ranks, call) if isinstance(it.more, OwnOperators) else it.more
    return structs.replace(it, ranks=ranks, call=call, more=more or it.more)


def _tried(run: Measures, who: Suspects, lag_ns: Lags) -> tuple[Change, Int64]:
    """The edit of these lags, and what each step is shorter with it."""
    edit = edit_of(run, who, lag_ns, work_on_cores(run, lag_ns))
    return edit, saved_by(run, lag_ns, [edit])[:, 0]
