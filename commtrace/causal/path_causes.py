"""What a host without operators did on the critical path, as far as the traces' labels tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from commtrace.arrays import rows_by
from commtrace.causal.critical_path import critical_pieces
from commtrace.causal.work.segments import LABELLED, labelled, own_intervals
from commtrace.diagnosis import Cause
from commtrace.intervals import covered
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["labelled_on_path"]


@measure
def labelled_on_path(run: Measures) -> Mapping[Cause, int]:
    """How much of the critical path's ``host`` was under a label of each cause, in ns.

    CannotLook as ``critical_path``.
    """
    if not any(labelled(run).values()):
        return {}
    found: dict[Cause, int] = dict.fromkeys(LABELLED, 0)
    pieces = critical_pieces(run)
    pieces = pieces.take(pieces.coded("kind").being("host"))
    start, end = pieces.ints("start_ns"), pieces.ints("end_ns")
    for (rank,), mine in rows_by(pieces.ints("rank")).items():
        when = own_intervals(run, rank)
        for cause in LABELLED:
            found[cause] += int(covered(start[mine], end[mine], when[cause]).sum())
    return found
