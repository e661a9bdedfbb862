"""When the run's traces begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.arrays import NULL, distinct
from commtrace.metrics.run.run_clock import on_run
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["recorded_apart", "run_span"]

_MOSTLY = 0.5  # of the longest recording


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


def recorded_apart(run: Measures) -> tuple[dict[int, int], int] | None:
    """For how long each rank was recorded, and all of them together, in ns.

    None where that is at least half of the longest, and where not all ranks have one clock: how
    clocks differ is known from operations that ranks recorded together.
    """
    table, clock = run.rows("ranks"), matched(run).clock
    known = table.ints("start_ns") != NULL
    if known.sum() < 2 or distinct(clock.ints("clock")).size > 1:
        return None
    ranks, starts, ends = (table.ints(name)[known] for name in ("rank", "start_ns", "end_ns"))
    together = max(int(ends.min() - starts.max()), 0)
    lasts = ends - starts
    if together >= _MOSTLY * lasts.max():
        return None
    return dict(zip(ranks.tolist(), lasts.tolist(), strict=True)), together
