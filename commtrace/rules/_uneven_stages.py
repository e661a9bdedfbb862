"""Which stage of a pipeline computes longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.whole import has_steps

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["heaviest_stage"]

_LONGER = 1.2  # times the mean


def heaviest_stage(run: Measures, ranks: Sequence[int]) -> str | None:
    """In words, which of these ranks computes far longer than they do in the mean, if one does.

    Within steps, where there are any. None if of one of them it is unknown.
    """
    its, time = devices(run, by_step=has_steps(run)), Counter[int]()
    for rank, ns in zip(its.ints("rank").tolist(), its.ints("compute_ns").tolist(), strict=True):
        time[rank] += max(ns, 0)
    each = [time[rank] for rank in ranks]
    mean, longest = sum(each) / len(each), max(each)
    if not all(each) or longest <= _LONGER * mean:
        return None
    heaviest = ranks[each.index(longest)]
    return f"rank {heaviest} computes {longest / mean:.3g} times as long as the mean stage"
