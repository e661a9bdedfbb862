"""How much longer hosts take for the same operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import spread
from commtrace.measures import measure
from commtrace.metrics.rank.host_meanwhile import outermost_operators
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SlowerOperators", "slower_operators"]

_COMPARED = 3  # of the ranks, and of the others
_CALLS = 10  # of an operator, of each of them
_OPERATORS = 3  # of one alone the operator may be to blame
_SLOWER = 1.25  # times as long
_MOST = 0.75  # of the calls are of operators that take so much longer


class SlowerOperators(Struct, frozen=True):
    """``times`` as long as others' take ranks' operators, in the median of their calls.

    ``name`` is the most frequent one, ``time_ns`` its median duration, ``usual_ns`` the others'.
    """

    times: float
    name: str
    time_ns: float
    usual_ns: float


class _Often(Struct, frozen=True):
    """How often an operator that no others call ran, and its median duration."""

    calls: int
    time_ns: float


@measure
def slower_operators(
    run: Measures, ranks: tuple[int, ...], others: tuple[int, ...]
) -> SlowerOperators | None:
    """Of these ranks' hosts, a few of them, beside some others'.

    None where nearly all their operators do not take longer, and where traces do not tell.
    """
    some, rest = ([its[at] for at in spread(len(its), _COMPARED)] for its in (ranks, others))
    known = {rank: its for rank in (*some, *rest) if (its := _operators(run, rank))}
    if len(known) < len(some) + len(rest) or not rest:
        return None
    mine, usual = (_in_median([known[rank] for rank in its]) for its in (some, rest))
    times = {
        name: mine[name].time_ns / max(usual[name].time_ns, 1.0)
        for name in mine.keys() & usual.keys()
    }
    if len(times) < _OPERATORS:
        return None
    names = sorted(times, key=lambda name: (times[name], name))
    calls = np.cumsum([mine[name].calls for name in names])
    low, middle = (
        times[names[int(np.searchsorted(calls, part * calls[-1]))]] for part in (1 - _MOST, 0.5)
    )
    if low < _SLOWER:
        return None
    most = max(names, key=lambda name: (mine[name].calls, name))
    return SlowerOperators(middle, most, mine[most].time_ns, usual[most].time_ns)


def _in_median(ranks: Sequence[Mapping[str, _Often]]) -> dict[str, _Often]:
    """The operators that each of these ranks runs often, as the middle one of them runs each."""
    names = set.intersection(*(set(its) for its in ranks))
    found = {}
    for name in names:
        every = [its[name] for its in ranks]
        calls = min(its.calls for its in every)
        found[name] = _Often(calls, median([its.time_ns for its in every]))
    return found


def _operators(run: Measures, rank: int) -> dict[str, _Often]:
    its = outermost_operators(run, rank)
    name = its.name
    order = np.argsort(name.codes, kind="stable")
    ends = np.cumsum(np.bincount(name.codes, minlength=len(name.names)))
    of_each = np.split(its.duration_ns[order], ends[:-1])
    return {
        name.names[code]: _Often(times.size, median(times))
        for code, times in enumerate(of_each)
        if times.size >= _CALLS
    }
