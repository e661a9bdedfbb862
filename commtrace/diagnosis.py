"""What a diagnosis says: notes, evidence, findings, and what could not be checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from commtrace.intervals import Intervals
from commtrace.units import counted

__all__ = [
    "CannotLook",
    "Diagnosis",
    "Evidence",
    "Explanation",
    "Finding",
    "Note",
    "Verdict",
    "enough",
    "too_few",
]


@dataclass(frozen=True)
class Note:
    """What the reader found wrong with a file, or had to assume."""

    code: str
    message: str
    rank: int | None = None
    file: str | None = None


@dataclass(frozen=True)
class Evidence:
    """One measured number behind a finding."""

    name: str
    value: float
    unit: str
    threshold: float | None = None


@dataclass(frozen=True)
class Finding:
    """One fault that a rule saw. ``cost_ns`` is the time recoverable at most.

    ``ranks`` are the culprits, ``streams`` where to look, the times Unix nanoseconds on the
    run's clock. ``explained_by`` names the rule whose finding this one is a symptom of;
    ``place`` is the program's innermost label that it lies in, None if in no single one.
    ``when`` are the times of its events, until the place is known.
    """

    rule: str
    summary: str
    ranks: tuple[int, ...]
    streams: tuple[int, ...]
    start_ns: int
    end_ns: int
    cost_ns: int
    evidence: tuple[Evidence, ...]
    ruled_out: tuple[str, ...]
    advice: str
    confidence: Literal["high", "medium", "low"]
    explained_by: str | None = None
    place: str | None = None
    when: Intervals | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Diagnosis:
    """Findings, costliest first, and the rules that could not look, with the reason.

    ``notes`` are about rules that broke.
    """

    findings: tuple[Finding, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


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


class CannotLook(Exception):  # noqa: N818 - an answer, not an error
    """Raised by ``check`` where the trace lacks what the rule needs; the text says what."""


def too_few(count: int, noun: str, needed: int, which: str = "") -> CannotLook:
    """What a claim about many lacks; ``which`` says which of them count."""
    return CannotLook(f"{counted(count, noun)}{which and ' '}{which}, needs {needed:,}")


def enough(
    found: Collection[tuple[int, Any]], needed: int, noun: str, which: str = ""
) -> Iterator[Any]:
    """What was found in at least so many; CannotLook if all was found in fewer."""
    many = [one for count, one in found if count >= needed]
    yield from many
    if found and not many:
        raise too_few(max(count for count, _ in found), noun, needed, which)
