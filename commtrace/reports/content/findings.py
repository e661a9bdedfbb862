"""What is wrong, as the reports for people say it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from commtrace.comms import OPERATIONS
from commtrace.reports.content.prose import clause
from commtrace.reports.content.saving import saving
from commtrace.reports.content.tables import more
from commtrace.units import clean

if TYPE_CHECKING:
    from commtrace.diagnosis import Finding, Verdict

__all__ = [
    "ADVICE",
    "FindingText",
    "called_at",
    "causes",
    "closing",
    "faults",
    "good_news",
    "text_of",
    "texts",
]

ADVICE = 1000
"""So many characters of an advice are shown: it holds names from the trace."""
_CURED = ("copy-loop", "pageable-copy")
"""Symptoms of a late rank that say better than that what to change in its program."""
_SHOWN = 10
_NAMED = 3
_ALL_OF = {f"{op}s" for op in OPERATIONS}  # what a finding of one or two operations lies in


class FindingText(Struct, frozen=True):
    """A finding in words: what is wrong, then lines: saving, confidence, cure, what is related.

    The texts come from traces: whoever lays them out must escape them.
    """

    summary: str
    lines: tuple[str, ...]


def causes(verdict: Verdict) -> list[Finding]:
    """The faults that no other explains, costliest first."""
    return [cause for cause, *_ in faults(verdict)]


def texts(verdict: Verdict) -> list[FindingText]:
    """The costliest faults."""
    return [text_of(cause, symptoms, verdict) for cause, *symptoms in faults(verdict)[:_SHOWN]]


def closing(verdict: Verdict) -> Iterator[str]:
    """A line each: how many faults are not shown, and good news."""
    yield from more(len(faults(verdict)), _SHOWN)
    yield from good_news(verdict)


def good_news(verdict: Verdict) -> list[str]:
    """A line each, of the most important."""
    good = [cause for cause, *_ in _with_symptoms(verdict) if cause.rule in verdict.good_news]
    return [f"Good news: {clean(cause.summary, 400)} ({cause.rule})" for cause in good[:_NAMED]]


def faults(verdict: Verdict) -> list[list[Finding]]:
    """The faults that no other explains, costliest first, each with its symptoms behind it."""
    return [its for its in _with_symptoms(verdict) if its[0].rule not in verdict.good_news]


def _with_symptoms(verdict: Verdict) -> list[list[Finding]]:
    """Each cause with its symptoms, which follow it."""
    families: list[list[Finding]] = []
    for finding in verdict.diagnosis.findings:
        if finding.explained_by is None or not families:
            families.append([])
        families[-1].append(finding)
    return families


def _related(cause: Finding, symptoms: list[Finding]) -> Iterator[str]:
    """Each rule that the cause shows itself to, and what it says beyond what the cause does."""
    count = Counter(symptom.rule for symptom in symptoms)
    for rule, times in count.items():
        first = next(symptom for symptom in symptoms if symptom.rule == rule)
        if times > 1:
            yield f"{rule} ({times}×)"
        else:
            said = clause(clean(first.summary.removesuffix(cause.summary).rstrip(", "), 400))
            if rule in _CURED:
                said = f"{said} → {clean(first.advice, ADVICE)}"
            yield f"{rule} ({said})" if said else rule


def _place(finding: Finding) -> Iterator[str]:
    """The label that it lies in, or the operations, where the summary does not say it."""
    place = finding.place or ""
    if place.startswith(("before the ", "behind the ")):
        yield from () if place in finding.summary else (place,)
    elif {*place.split(" and ")} <= _ALL_OF:
        yield f"in {place}"
    elif place:
        yield f"in '{clean(place, 40)}'"


def called_at(finding: Finding) -> Iterator[str]:
    """The lines of the program, if they are known."""
    if finding.called_at:
        yield f"called at {'; '.join(clean(line, 160) for line in finding.called_at)}"


def text_of(finding: Finding, symptoms: list[Finding], verdict: Verdict) -> FindingText:
    """A fault in words."""
    lines = [
        *filter(None, [saving(finding, verdict)]),
        " · ".join((*_place(finding), f"{finding.confidence} confidence", finding.rule)),
        *called_at(finding),
        f"→ {clean(finding.advice, ADVICE)}",
    ]
    if symptoms:
        lines.append(f"related: {', '.join(_related(finding, symptoms))}")
    return FindingText(clean(finding.summary, 400), tuple(lines))
