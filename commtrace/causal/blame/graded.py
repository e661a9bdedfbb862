"""Ranks each of which has more to do than the next: each hides what those behind it save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from commtrace.arrays import Float64
from commtrace.causal.blame.awaited import awaited
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.suspects import saved_evenly
from commtrace.causal.edits.own_pace import undisturbed
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work, work_on_cores
from commtrace.comms import members
from commtrace.diagnosis import Cause
from commtrace.metrics.run.group_dimensions import kin
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["together_if_graded"]

_SEVERAL = 3  # of two one may well be late beside the other
_STAIR = 0.5  # of the mean step up from rank to rank
_HIDDEN = 0.25  # of what it saves on top of those before, a rank saves alone


def together_if_graded(run: Measures, found: Sequence[Culprit]) -> Sequence[Culprit]:
    """The culprits; as one, that saves what even work of all ranks does, where they are graded.

    That is where they compute more in every step, or the first does and all ranks' work is a
    stair, and none behind the first saves much alone: to make one as the others says little, and
    such work does not vanish. No GPUs are slower by the same from each to the next.
    """
    if not found:
        return found
    of_all = len(found) >= _SEVERAL and all(map(_computes_more, found))
    on_gpus = not run_graph(run).calls.on_cpu.any()
    stairs = _computes_more(found[0], or_slower=on_gpus) and _are_stairs(run)
    if not of_all and not stairs:
        return found
    if any(its.saved_ns > _HIDDEN * its.on_top_ns for its in found[1:]):
        return found
    first, lag = found[0], undisturbed(run)
    steps = saved_evenly(run, lag, work_on_cores(run, lag))
    if steps.sum() <= first.on_top_ns and not stairs:
        return found
    ranks = tuple(sorted(rank for its in found for rank in its.ranks))
    parts: dict[Cause, float] = {}
    for cause, time in (part for its in found for part in its.parts_ns.items()):
        parts[cause] = parts.get(cause, 0.0) + time
    its = structs.replace(
        first,
        ranks=ranks,
        saved_ns=int(steps.sum()),
        on_top_ns=int(steps.sum()),
        replayed_step_ns=first.replayed_step_ns + int(median(first.steps_ns - steps)),
        steps_ns=steps,
        noise_ns=max(its.noise_ns for its in found),
        p_value=max(its.p_value for its in found),
        in_every=all(its.in_every for its in found),
        others_ns=found[-1].others_ns,
        parts_ns=parts,
        waits=awaited(run, ranks, lag),
        instead_ns=np.sum([its.steps_ns for its in found], axis=0),
        graded=True,
    )
    return [its]


def _are_stairs(run: Measures) -> bool:
    """Whether from each rank to the next the work grows by about as much, or falls.

    Of all ranks, or of those of each group of a dimension.
    """
    calls, work = run_graph(run).calls, own_work(run)
    ranks, number = np.unique(calls.rank, return_inverse=True)
    own_ns = np.bincount(number, work.own_ns.sum(axis=1))
    return any(
        all(_is_stair(own_ns[np.searchsorted(ranks, some)]) for some in sets)
        for sets in ([ranks.tolist()], *_partitions(run, ranks.tolist()))
    )


def _partitions(run: Measures, ranks: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """The groups of each dimension of which every rank is in one."""
    of_kin: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for name, family in kin(run).items():
        if its := members(name):
            of_kin[family].append(its)
    for groups in of_kin.values():
        if sorted(chain.from_iterable(groups)) == ranks:
            yield groups


def _is_stair(own_ns: Float64) -> bool:
    up = np.diff(own_ns)
    one_way = bool((up > 0).all() or (up < 0).all())
    up = np.abs(up)
    return own_ns.size > _SEVERAL and one_way and bool(up.min() >= _STAIR * up.mean())


def _computes_more(its: Culprit, *, or_slower: bool = False) -> bool:
    """In every step, and not for what it takes longer than others on the same."""
    alike = its.in_median or its.shared or (its.slower is not None and not or_slower)
    return its.cause == "compute" and its.persistent and not alike
