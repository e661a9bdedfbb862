"""What a report shows: a summary of the run, the measures, the findings; a rule explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.diagnosis import Note, Verdict

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Analysis", "Summary"]


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
class Analysis:
    """One run's analysis, the input of every report: what ran, its measures, the verdict."""

    run: Summary
    notes: tuple[Note, ...]
    measures: Measures
    verdict: Verdict
