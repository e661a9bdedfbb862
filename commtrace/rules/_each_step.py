"""How long something takes: in each step, or in few of them nearly all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64
from commtrace.metrics.run.whole import has_steps
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["how_long", "stalls"]

_MOST = 0.9  # of the time
_FEW = 0.5  # of the steps


def stalls(each_ns: Float64) -> int:
    """In how many steps nearly all is, if these are few; else 0."""
    most_first = np.sort(each_ns)[::-1].cumsum()
    count = int(np.searchsorted(most_first, _MOST * most_first[-1])) + 1
    return count if count <= int(_FEW * each_ns.size) else 0


def how_long(run: Measures, each_ns: Float64) -> str:
    """The same in words, with how long that is."""
    part = "step" if has_steps(run) else "tenth of the run"
    if few := stalls(each_ns):
        longest = np.sort(each_ns)[-few:].mean()
        return f"in {few} of {counted(each_ns.size, part)}, {ms(float(longest))} in each"
    return f"for {ms(float(each_ns.mean()))} of each {part}"
