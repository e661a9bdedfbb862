"""What is wrong, as the reports for people say it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.reports.content.tables import more
from commtrace.units import clean, counted, duration, percent

if TYPE_CHECKING:
    from commtrace.diagnosis import Finding, Verdict

__all__ = ["Told", "closing", "told"]

_SHOWN = 10
_NAMED = 3


@dataclass(frozen=True)
class Told:
    """A finding in words: what is wrong, and a line each for its cost, the cure, its symptoms.

    The texts come from traces: whoever lays them out must escape them.
    """

    summary: str
    lines: tuple[str, ...]


def told(verdict: Verdict) -> list[Told]:
    """The costliest faults."""
    faults = [its for its in _with_symptoms(verdict) if its[0].rule not in verdict.good_news]
    return [_told(cause, symptoms, verdict) for cause, *symptoms in faults[:_SHOWN]]


def closing(verdict: Verdict) -> Iterator[str]:
    """A line each: what is not shown, good news, and that rules could not look."""
    causes = [cause for cause, *_ in _with_symptoms(verdict)]
    faults = [cause for cause in causes if cause.rule not in verdict.good_news]
    if not faults:
        yield "No findings."
    yield from more(len(faults), _SHOWN)
    good = [cause for cause in causes if cause.rule in verdict.good_news]
    yield from (f"Good news: {clean(cause.summary, 400)} ({cause.rule})" for cause in good[:_NAMED])
    if skipped := sorted(verdict.diagnosis.skipped):
        count = f"{counted(len(skipped), 'rule')} could not look"
        names = f": {', '.join(skipped)}" if len(skipped) <= _NAMED else ""
        yield f"{count}{names}; --format json says why."


def _with_symptoms(verdict: Verdict) -> list[list[Finding]]:
    """Each cause with its symptoms, which follow it."""
    families: list[list[Finding]] = []
    for finding in verdict.diagnosis.findings:
        if finding.explained_by is None or not families:
            families.append([])
        families[-1].append(finding)
    return families


def _also(cause: Finding, symptoms: list[Finding]) -> Iterator[str]:
    """Each rule that the cause shows itself to, and what it says if that is something else."""
    count = Counter(symptom.rule for symptom in symptoms)
    for rule, times in count.items():
        first = next(symptom for symptom in symptoms if symptom.rule == rule)
        if times > 1:
            yield f"{rule} ({times}×)"
        else:
            yield rule if first.summary == cause.summary else f"{rule} ({clean(first.summary)})"


def _told(finding: Finding, symptoms: list[Finding], verdict: Verdict) -> Told:
    cost = []
    if finding.cost_ns:
        share = percent(finding.cost_ns, verdict.step_time_ns)
        whole = "steps" if verdict.in_steps else "run"
        cost = [f"costs at most {duration(finding.cost_ns)} ({share} of the {whole})"]
    place = [f"in '{clean(finding.place, 40)}'"] if finding.place else []
    lines = [
        " · ".join((*cost, *place, f"{finding.confidence} confidence", finding.rule)),
        f"→ {clean(finding.advice, 400)}",
    ]
    if symptoms:
        lines.append(f"also seen as: {', '.join(_also(finding, symptoms))}")
    return Told(clean(finding.summary, 400), tuple(lines))
