"""What each rank's process saw of its machine while it was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.machine import Machine

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["machines"]


def machines(run: Measures) -> dict[int, Machine]:
    """By rank, as its trace has it, or the manifest; none where the recorder noted none."""
    ranks = (run.manifest or {}).get("ranks")
    rows = [one for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
    each = [(one.get("rank"), Machine.of(one.get("machine"))) for one in rows]
    said = {rank: its for rank, its in each if isinstance(rank, int) and its is not None}
    return {**said, **run.machines}
