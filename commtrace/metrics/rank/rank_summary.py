"""What one rank tells by itself, small: summaries merge by concatenation into those of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commtrace.measures import measure
from commtrace.metrics.rank.copies import copies
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.rank.streams import stream_overlap, streams
from commtrace.trace_tables import TABLES

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["RankSummary", "rank_summary"]


@dataclass(frozen=True)
class RankSummary:
    """A rank's activity, and its operations.

    DEVICES, also by step, STREAMS, STREAM_OVERLAP, COPIES; its rows of ``collectives``.
    """

    rank: int
    devices: pd.DataFrame
    device_steps: pd.DataFrame
    streams: pd.DataFrame
    stream_overlap: pd.DataFrame
    copies: pd.DataFrame
    operations: pd.DataFrame


@measure
def rank_summary(run: Measures, rank: int) -> RankSummary:
    """The summary of one of the run's ranks, from its own rows alone.

    Raises KeyError where there is no such rank.
    """
    if rank not in run.rows("ranks").ints("rank"):
        raise KeyError(rank)
    its: dict[str, Any] = {table.name: rows_of_rank(run, table.name, rank) for table in TABLES}
    alone = replace(run, **its)
    return RankSummary(
        rank,
        devices(alone).frame(),
        devices(alone, by_step=True).frame(),
        streams(alone).frame(),
        stream_overlap(alone).frame(),
        copies(alone).frame(),
        its["collectives"].frame(),
    )
