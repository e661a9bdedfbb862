"""The main thing, before any table: the costliest finding, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.diagnosis import LOOKED
from commtrace.metrics.rank.devices import devices
from commtrace.reports.content.findings import ADVICE, causes
from commtrace.reports.content.prose import clause
from commtrace.reports.content.ranges import answer
from commtrace.reports.content.saving import saving
from commtrace.reports.content.tables import exposed_share
from commtrace.units import clean, duration, percent

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Finding

__all__ = ["verdict"]

_HIGH = 0.1  # of a device's time: as much exposed communication does not go without a word
_ALIKE = 0.01  # of a device's time: so much apart, none is worth naming
_LITTLE = 0.5  # of the exposed communication: less compute beside it cannot help much
_HIDDEN = 0.8  # of the communication: some end of it is always exposed


def verdict(analysis: Analysis) -> list[str]:
    """The costliest finding in two lines: what it is, and what to do for which saving.

    Without findings one line, which says why where much communication is exposed.
    """
    found = causes(analysis.verdict)
    if not found:
        return [" ".join(("No findings.", *_reason(analysis)))]
    top = found[0]
    which = "Finding" if len(found) == 1 else f"Finding 1 of {len(found)}"
    summary = clean(top.summary, 400)
    if summary in (answer(analysis) or ""):
        first = f"{which}: the answer above."
    else:
        first = f"{which}: {clause(summary)}"
    return [first, _remedy(top, analysis)]


def _remedy(top: Finding, analysis: Analysis) -> str:
    saved = saving(top, analysis.verdict)
    advice = f"→ {clause(clean(top.advice, ADVICE))}"
    return f"{saved[0].upper()}{saved[1:]} {advice}" if saved else advice


def _reason(analysis: Analysis) -> list[str]:
    """Why much exposed communication is no finding."""
    known = [row for row in devices(analysis.measures).dicts() if row["span_ns"]]
    most = max(known, key=exposed_share, default=None)
    if most is None or exposed_share(most) < _HIGH:
        return []
    diagnosis, rule = analysis.verdict.diagnosis, "exposed-communication"
    if reason := diagnosis.skipped.get(rule):
        said = "" if reason.startswith(LOOKED) else " was not checked"
        return [f"{rule}{said}: {clean(reason.removeprefix(LOOKED), 300)}."]
    alike = len(known) > 1 and exposed_share(most) - min(map(exposed_share, known)) < _ALIKE
    who, whose = f"Rank {most['rank']} has", f"rank {most['rank']}'s "
    if alike:
        who, whose = "Each rank has", "each rank's "
    exposed, communication = most["exposed_communication_ns"], most["communication_ns"]
    free = (most["compute_ns"] or 0) - most["overlapped_communication_ns"]
    if free < _LITTLE * exposed:
        compute = f"only {duration(free)} of compute" if free else "no compute"
        what = f"{duration(exposed)} of exposed communication"
        if not most["overlapped_communication_ns"]:
            return [f"{who} {compute} to hide its {what} behind."]
        rest = f"other communication runs beside the rest, {duration(most['compute_ns'] - free)}"
        return [f"{who} {compute} left to hide its {what} behind: {rest}."]
    if most["overlapped_communication_ns"] >= _HIDDEN * communication:
        share = percent(most["overlapped_communication_ns"], communication)
        return [f"Of {whose}communication {share} is hidden already."]
    if rule not in diagnosis.asked:
        return [f"{rule} was not selected."]
    return [f"{rule} was checked, and stays below its thresholds."]
