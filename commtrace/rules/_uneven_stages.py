"""Which stage of a pipeline computes longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from commtrace.intervals import covered
from commtrace.metrics.rank.activity import device_work
from commtrace.metrics.rank.rows_of import measured_ranks
from commtrace.metrics.rank.spans import rank_spans
from commtrace.metrics.run.whole import has_steps

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["heaviest_stage"]

_LONGER = 1.2  # times the mean
_ALL = ("begin_ns", "end_ns")


def heaviest_stage(run: Measures, ranks: Sequence[int]) -> str | None:
    """In words, which of these ranks computes far longer than they do in the mean, if one does.

    Within steps, where there are any. None if of one of them it is unknown.
    """
    time, within = dict.fromkeys(ranks, 0), _within(run)
    for (rank, _), work in device_work(run).items():
        if rank in time and work.compute is not None:
            first_ns, last_ns = within[rank]
            time[rank] += int(covered([first_ns], [last_ns], work.compute)[0])
    mean, heaviest = sum(time.values()) / len(time), max(time, key=lambda rank: time[rank])
    if not all(time.values()) or time[heaviest] <= _LONGER * mean:
        return None
    return f"rank {heaviest} computes {time[heaviest] / mean:.3g} times as long as the mean stage"


def _within(run: Measures) -> dict[int, tuple[int, int]]:
    """From when until when each rank's steps last, or its trace."""
    names = ("begin_in_steps_ns", "end_in_steps_ns") if has_steps(run) else _ALL
    found = dict[int, tuple[int, int]]()
    for ranks in measured_ranks(run):
        spans: Any = rank_spans(run, *ranks)
        first_ns, last_ns = (spans[name].tolist() for name in names)
        found |= zip(ranks, zip(first_ns, last_ns, strict=True), strict=True)
    return found
