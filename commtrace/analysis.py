"""What a report shows: a summary of the run, the measures, the findings; a rule explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.diagnosis import Note, Verdict

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Analysis", "Question", "Summary"]


@dataclass(frozen=True)
class Summary:
    """What ran. ``world_size`` is None where no trace tells it."""

    name: str
    world_size: int | None
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    backends: tuple[str, ...]
    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    span_ns: int
    steps: int


@dataclass(frozen=True)
class Question:
    """What a recorded workload asks, and where in the table of ranges the answer is.

    ``column`` of the rows of ``labels``, the first of which the others are held against; both
    are empty where the findings answer.
    """

    text: str
    column: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """One run's analysis: the input of every report. Tables as in ``metrics``."""

    run: Summary
    question: Question | None
    notes: tuple[Note, ...]
    devices: pd.DataFrame
    streams: pd.DataFrame
    stream_overlap: pd.DataFrame
    collectives: pd.DataFrame
    copies: pd.DataFrame
    ranges: pd.DataFrame
    ranks: pd.DataFrame
    arrivals: pd.DataFrame
    operations: pd.DataFrame
    waits: pd.DataFrame
    clock: pd.DataFrame
    verdict: Verdict
