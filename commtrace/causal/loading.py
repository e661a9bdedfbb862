"""How long all ranks alike wait for their data, and the run without that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.causal.alike import Alike, alike
from commtrace.causal.work.segments import own_intervals, own_parts
from commtrace.intervals import Intervals
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["loading", "loading_when"]


@measure
def loading(run: Measures) -> Alike:
    """What ranks load. CannotLook as ``run_graph``."""
    return alike(run, own_parts(run)["loader"])


def loading_when(run: Measures, rank: int) -> Intervals:
    """When a rank was under a data loader's label, on the run's clock."""
    return own_intervals(run, rank)["loader"]
