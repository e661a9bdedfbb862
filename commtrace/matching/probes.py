"""How far each rank's clock is off, as the recorder asked it: a bound, whatever the network.

Where ends of operations only agree or disagree, a reading is certain: rank 0's answer lay
between a question and its arrival. A link that is slower in one direction widens the
error, and does not shift the offset beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, distinct
from commtrace.matching.clock_line import DRIFT, LINE_SPAN_NS, Line

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Probed", "probed"]


class Probed(Struct, frozen=True):
    """A rank's clock against rank 0's, read from ``first_ns`` to ``last_ns`` of rank 0's."""

    line: Line
    drifts: bool
    error_ns: float
    first_ns: int
    last_ns: int

    def error_over(self, span: tuple[int, int]) -> float:
        """The error over a span of rank 0's clock, which may reach beyond the readings."""
        beyond = max(0, self.first_ns - span[0], span[1] - self.last_ns)
        return self.error_ns + DRIFT * beyond


def probed(run: Measures) -> dict[int, Probed]:
    """The ranks that have readings, and the line through the first and the last."""
    probes = run.rows("probes")
    rank, at, offset, error = map(probes.ints, ("rank", "at_ns", "offset_ns", "error_ns"))
    return {one: _through(at[mine], offset[mine], error[mine]) for one, mine in _each(rank).items()}


def _each(rank: Int64) -> dict[int, Int64]:
    return {one: np.flatnonzero(rank == one) for one in distinct(rank).tolist()}


def _through(at: Int64, offset: Int64, error: Int64) -> Probed:
    first, last = int(at.argmin()), int(at.argmax())
    begun, ended = int(at[first]), int(at[last])
    of_rank_0 = begun - int(offset[first]), ended - int(offset[last])
    grown, worst = int(offset[last] - offset[first]), float(max(error[first], error[last]))
    if ended - begun >= LINE_SPAN_NS:
        line = Line(float(offset[first]), grown / (ended - begun), begun)
        return Probed(line, True, worst, *of_rank_0)
    middle = Line(float(offset[first]) + grown / 2, 0.0, begun)
    return Probed(middle, False, worst + abs(grown) / 2, *of_rank_0)
