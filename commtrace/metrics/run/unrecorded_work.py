"""Communication that hosts called, of whose work nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.comms import canonical_operation, is_communication_call
from commtrace.diagnosis import Note
from commtrace.metrics.rank.rows_of import ranks_of
from commtrace.units import counted

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["UNRECORDED_WORK", "calls_without_work", "unrecorded_work"]

UNRECORDED_WORK = "unrecorded-work"
"""The note's code; it has a rank where others' work is recorded."""


def calls_without_work(run: Measures) -> dict[int, int]:
    """How many operations each rank's host called of which no GPU's or gloo's work is recorded.

    So it is where the profiler's activities are the CPU's alone, or the GPU's tracer had no
    permission: of all ranks or of some, of which nothing else is recorded either.
    """
    worked = [
        rank for table in ("kernels", "copies", "collectives") for rank in ranks_of(run, table)
    ]
    ops = run.rows("ops")
    silent = ops.coded("name").where(_calls) & ~np.isin(ops.ints("rank"), worked)
    ranks, counts = np.unique(ops.ints("rank")[silent], return_counts=True)
    return dict(zip(ranks.tolist(), counts.tolist(), strict=True))


def unrecorded_work(run: Measures) -> tuple[Note, ...]:
    """``unrecorded-work``: operations were called, and nothing shows what they did."""
    found = calls_without_work(run)
    if 0 < len(found) < len(run.rows("ranks")):
        return tuple(_note("its host", count, rank) for rank, count in found.items())
    return (_note("the hosts", sum(found.values())),) if found else ()


def _note(who: str, count: int, rank: int | None = None) -> Note:
    message = (
        f"{who} called {counted(count, 'operation')}, and nothing of what these ran was recorded: "
        "no kernel of a GPU, and no work of gloo"
    )
    return Note(UNRECORDED_WORK, message, rank)


def _calls(name: str) -> bool:
    return is_communication_call(name) and canonical_operation(name) is not None
