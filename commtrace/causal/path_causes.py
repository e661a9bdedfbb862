"""What a host without operators did on the critical path, as far as the traces' labels tell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commtrace.arrays import rows_by
from commtrace.causal.critical_path import critical_pieces
from commtrace.causal.segments import LABELLED, labelled, own_intervals
from commtrace.diagnosis import Cause
from commtrace.intervals import covered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["labelled_on_path"]


def labelled_on_path(run: Measures) -> Counter[Cause]:
    """How much of the critical path's ``host`` was under a label of each cause, in ns.

    CannotLook as ``critical_path``.
    """
    found: Counter[Cause] = Counter()
    if not any(labelled(run).values()):
        return found
    pieces = critical_pieces(run)
    pieces = pieces.take(pieces.coded("kind").being("host"))
    start, end = pieces.ints("start_ns"), pieces.ints("end_ns")
    for (rank,), mine in rows_by(pieces.ints("rank")).items():
        when = own_intervals(run, rank)
        for cause in LABELLED:
            found[cause] += int(covered(start[mine], end[mine], when[cause]).sum())
    return found
