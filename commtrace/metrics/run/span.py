"""When the run's traces begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.arrays import NULL, integers
from commtrace.matching import on_run_clock
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["run_span"]


def run_span(run: Measures) -> tuple[int, int]:
    """The first start and the last end of any event, on the run's clock in ns; 0, 0 without any."""
    ranks, clock = integers(run.ranks["rank"]), matched(run).clock
    starts, ends = integers(run.ranks["start_ns"]), integers(run.ranks["end_ns"])
    known = starts != NULL
    if not known.any():
        return 0, 0
    first = on_run_clock(starts[known], ranks[known], clock)[0].min()
    last = on_run_clock(ends[known], ranks[known], clock)[0].max()
    return int(first), int(last)
