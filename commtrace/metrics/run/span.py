"""When the run's traces begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.arrays import NULL
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["run_span"]


def run_span(run: Measures) -> tuple[int, int]:
    """The first start and the last end of any event, on the run's clock in ns; 0, 0 without any."""
    table = run.rows("ranks")
    ranks, starts, ends = (table.ints(name) for name in ("rank", "start_ns", "end_ns"))
    known = starts != NULL
    if not known.any():
        return 0, 0
    first = on_run(run, ranks[known], starts[known]).min()
    last = on_run(run, ranks[known], ends[known]).max()
    return int(first), int(last)
