"""Where a finding is in the timeline, and the command that shows it there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from commtrace.metrics.run.span import run_span
from commtrace.reports.content.findings import causes
from commtrace.units import clean, cut, duration

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Finding, Verdict

__all__ = ["numbered_findings", "open_command", "open_command_shown", "range_in_run"]

_LONGEST = 100_000  # of a command line, whose names of files need not be printable
_LONGEST_SHOWN = 1_000  # where each finding has one


def numbered_findings(verdict: Verdict) -> list[tuple[int, Finding]]:
    """Each finding with its number: first those that reports number, in their order."""
    first = causes(verdict)
    shown = {id(finding) for finding in first}
    others = [its for its in verdict.diagnosis.findings if id(its) not in shown]
    return list(enumerate([*first, *others], 1))


def open_command(analysis: Analysis, number: int | None = None) -> str:
    """The command line that opens the run in Perfetto, at the finding of that number if any."""
    finding = [] if number is None else ["--finding", str(number)]
    line = shlex.join(["commtrace", "open", *analysis.arguments, *finding])
    return cut(clean(line, len(line)), _LONGEST)


def open_command_shown(analysis: Analysis, number: int | None = None) -> str:
    """The same to be read by people: of very many files the first and the last."""
    return cut(open_command(analysis, number), _LONGEST_SHOWN)


def range_in_run(analysis: Analysis, finding: Finding) -> str:
    """From when to when a finding is, counted from the run's first event.

    Of ranks' own clocks it may begin before that.
    """
    first, _ = run_span(analysis.measures)
    start, end = (duration(max(time - first, 0)) for time in (finding.start_ns, finding.end_ns))
    return f"from {start} to {end} of the run"
