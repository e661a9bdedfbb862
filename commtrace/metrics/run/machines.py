"""What each rank's process saw of its machine while it was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.machine import Machine
from commtrace.measures import measure
from commtrace.metrics.run.manifest_ranks import manifest_ranks

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["machines"]


@measure
def machines(run: Measures) -> dict[int, Machine]:
    """By rank, as its trace has it, or the manifest; none where the recorder noted none."""
    each = [(one.get("rank"), Machine.of(one.get("machine"))) for one in manifest_ranks(run)]
    said = {rank: its for rank, its in each if isinstance(rank, int) and its is not None}
    return {**said, **run.machines}
