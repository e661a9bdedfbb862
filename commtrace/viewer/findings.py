"""What the analysis found, above all ranks: the findings, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.causal.critical_path import critical_pieces
from commtrace.reports.content.open_command import numbered_findings, open_command
from commtrace.reports.content.saving import saving
from commtrace.units import clean
from commtrace.viewer.slices import Slice, Timeline, Value, apart, draw

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Finding
    from commtrace.measures import Measures

__all__ = ["draw_critical_path", "draw_findings", "range_ns"]


def draw_findings(analysis: Analysis, timeline: Timeline, parent: int) -> None:
    """Every finding over its range, with its evidence, potential saving and advice."""
    drawn = [
        Slice(*range_ns(finding), _title(number, finding), _arguments(analysis, number, finding))
        for number, finding in numbered_findings(analysis.verdict)
    ]
    drawn.sort(key=lambda its: (its.start_ns, its.end_ns))
    start, end = (np.array([its[at] for its in drawn], dtype=np.int64) for at in (0, 1))
    if drawn:
        draw(timeline, "findings", parent, [(its,) for its in drawn], apart(start, end))


def range_ns(finding: Finding) -> tuple[int, int]:
    """Where a finding begins and ends; a moment has a nanosecond."""
    return finding.start_ns, max(finding.end_ns, finding.start_ns + 1)


def draw_critical_path(run: Measures, timeline: Timeline, parent: int) -> None:
    """The critical path; CannotLook where it is not known."""
    drawn = [
        Slice(row["start_ns"], row["end_ns"], _piece(row["kind"], row["op"], row["rank"]), row)
        for row in critical_pieces(run).dicts()
    ]
    timeline.slices(timeline.track("critical path", parent), drawn)


def _piece(kind: str, op: str | None, rank: int) -> str:
    # Digits at the end are no part of a slice's colour.
    return f"{kind} of {op}, rank {rank}" if op else f"{kind}, rank {rank}"


def _title(number: int, finding: Finding) -> str:
    return f"{number}. {finding.rule}: {clean(finding.summary, 120)}"


def _arguments(analysis: Analysis, number: int, finding: Finding) -> dict[str, Value]:
    evidence = {
        f"evidence: {its.name}": f"{its.value:g} {its.unit}"
        + ("" if its.threshold is None else f" (threshold {its.threshold:g})")
        for its in finding.evidence
    }
    ruled_out = {f"ruled out {i}": text for i, text in enumerate(finding.ruled_out, 1)}
    return {
        "rule": finding.rule,
        "summary": finding.summary,
        "ranks": ", ".join(map(str, finding.ranks)) or None,
        "streams": ", ".join(map(str, finding.streams)) or None,
        "saving": saving(finding, analysis.verdict),
        "potential_saving_ns": finding.cost_ns,
        **evidence,
        **ruled_out,
        "advice": finding.advice,
        "confidence": finding.confidence,
        "place": finding.place,
        "cause": finding.cause,
        "explained_by": finding.explained_by,
        "command": open_command(analysis, number),
    }
