"""In which of the program's labels a time lies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64
from commtrace.intervals import Intervals, covered, intersect, total, union
from commtrace.measures import measure
from commtrace.metrics.rank.labels import Labels, labels
from commtrace.metrics.rank.range_times import range_times
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["place"]

_MOSTLY = 0.9  # of the time


def place(run: Measures, when: Intervals, ranks: Collection[int]) -> str | None:
    """The innermost of the program's own labels that nine tenths of a time lie in, on any rank.

    The time is on the run's clock; of ``ranks`` only if there are any. A label's ranges last
    as ``range_times`` has them. None where no label holds as much, or several do that are
    not within each other.
    """
    its = labels(run)
    least = _MOSTLY * total(when)
    if not its.own.any() or not least:
        return None
    begin, done = _windows(run)
    at = np.flatnonzero(its.own & (np.isin(its.rank, list(ranks)) if ranks else True))
    inside = covered(begin[at], done[at], when)
    sums = np.bincount(its.label[at], weights=inside, minlength=len(its.names))
    held: dict[int, int] = {}
    for label in np.flatnonzero(sums >= least).tolist():
        mine = at[its.label[at] == label]
        windows = union(begin[mine], done[mine])
        if total(intersect(windows, when)) >= least:
            held[label] = total(windows)
    if not held:
        return None
    innermost = min(held, key=lambda label: held[label])
    return its.names[innermost] if held.keys() <= _around(its, innermost) else None


@measure
def _windows(run: Measures) -> tuple[Int64, Int64]:
    """When each range began and was done, on the run's clock."""
    its, times = labels(run), range_times(run)
    return on_run(run, its.rank, times.begin_ns), on_run(run, its.rank, times.done_ns)


def _around(its: Labels, label: int) -> set[int]:
    """The label, and those of the program's own that enclose it anywhere."""
    found = {label}
    _, ranges = its.around(np.flatnonzero(its.label == label))
    return found | set(its.label[ranges[its.own[ranges]]].tolist())
