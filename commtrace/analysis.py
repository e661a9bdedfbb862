"""What a report shows: a summary of the run, the measures, the findings; a rule explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.schema import Diagnosis, Finding, Note

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Analysis", "Explanation", "Summary", "Verdict"]


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
class Verdict:
    """A diagnosis, and what it takes to weigh its findings.

    ``step_time_ns`` is the time that costs are a share of: of the steps if ``in_steps``, else
    of the whole run; findings of the rules in ``good_news`` are no faults.
    """

    diagnosis: Diagnosis
    step_time_ns: int
    good_news: frozenset[str]
    in_steps: bool = True

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are no good news."""
        return tuple(f for f in self.diagnosis.findings if f.rule not in self.good_news)


@dataclass(frozen=True)
class Explanation:
    """A rule: its documentation, its thresholds' defaults, and what it says of its example."""

    rule: str
    documentation: str
    thresholds: Mapping[str, int | float | str]
    example: str
    verdict: Verdict


@dataclass(frozen=True)
class Analysis:
    """One run's analysis: the input of every report. Tables as in ``metrics``."""

    run: Summary
    notes: tuple[Note, ...]
    devices: pd.DataFrame
    streams: pd.DataFrame
    stream_overlap: pd.DataFrame
    collectives: pd.DataFrame
    copies: pd.DataFrame
    ranks: pd.DataFrame
    arrivals: pd.DataFrame
    operations: pd.DataFrame
    waits: pd.DataFrame
    clock: pd.DataFrame
    verdict: Verdict
