"""Which stage of a pipeline computes longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commtrace.intervals import total
from commtrace.metrics.rank.activity import device_work

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["heaviest_stage"]

_LONGER = 1.2  # times the mean


def heaviest_stage(run: Measures, ranks: Sequence[int]) -> str | None:
    """In words, which of these ranks computes far longer than they do in the mean, if one does."""
    time = dict.fromkeys(ranks, 0)
    for (rank, _), work in device_work(run).items():
        if rank in time and work.compute is not None:
            time[rank] += total(work.compute)
    mean, heaviest = sum(time.values()) / len(time), max(time, key=lambda rank: time[rank])
    if time[heaviest] <= _LONGER * mean:
        return None
    return f"rank {heaviest} computes {time[heaviest] / mean:.3g} times as long as the mean stage"
