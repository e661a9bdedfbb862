"""Which ranks of a job have no trace file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["missing_ranks"]


def missing_ranks(run: Measures) -> list[int]:
    """The ranks of the job without a trace file, as far as its size is known."""
    ranks = run.rows("ranks")
    world = int(ranks.ints("world_size").max(initial=0))
    return sorted({*range(world)} - {*ranks.ints("rank").tolist()})
