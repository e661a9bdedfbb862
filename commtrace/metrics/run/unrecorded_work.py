"""Communication that hosts called, of whose work nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.comms import canonical_operation, is_communication_call
from commtrace.diagnosis import Note

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["UNRECORDED_WORK", "calls_without_work", "unrecorded_work"]

UNRECORDED_WORK = "unrecorded-work"
"""The note's code."""


def calls_without_work(run: Measures) -> int:
    """How many operations the hosts called; 0 where any work of a GPU or of gloo is recorded.

    So it is where the profiler's activities are the CPU's alone, or the GPU's tracer had no
    permission.
    """
    if any(len(run.rows(table)) for table in ("kernels", "copies", "collectives")):
        return 0
    return int(run.rows("ops").coded("name").where(_calls).sum())


def unrecorded_work(run: Measures) -> tuple[Note, ...]:
    """``unrecorded-work``: operations were called, and nothing shows what they did."""
    count = calls_without_work(run)
    if not count:
        return ()
    message = (
        f"the hosts called {count:,} operations, and nothing of what these ran was recorded: no "
        "kernel of a GPU, and no work of gloo"
    )
    return (Note(UNRECORDED_WORK, message),)


def _calls(name: str) -> bool:
    return is_communication_call(name) and canonical_operation(name) is not None
