"""How far the report is to be trusted: notes on the files, clocks, and what was not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace import __version__
from commtrace.arrays import NULL
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.waits import matched
from commtrace.reports import content
from commtrace.reports.content import waiting
from commtrace.reports.web.markup import Markup, listed, tag
from commtrace.units import clean, counted, duration

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["trace_quality"]

_NOTES = 60


def trace_quality(analysis: Analysis) -> Markup:
    """Notes, clocks, rules that were skipped, and what made the page."""
    _, unchecked = content.unfound(analysis)
    notes = [line for note in analysis.notes[:_NOTES] for line in content.notes([note])]
    if hidden := len(analysis.notes) - _NOTES if len(analysis.notes) > _NOTES else 0:
        notes.append(f"{counted(hidden, 'more note')}: see --format json.")
    return tag(
        "div",
        listed("Notes on the files", notes or ["None."]),
        listed("Clocks", [_clocks(analysis)]),
        listed(*unchecked),
        _skipped(analysis),
        tag(
            "p",
            f"Made by commtrace {__version__}. Times are on the run's clock; GB is 1e9 bytes.",
            class_="hint",
        ),
    )


def _clocks(analysis: Analysis) -> str:
    known = int(matched(analysis.measures).clock.ints("error_ns").max(initial=NULL))
    if len(analysis.run.ranks) < 2 or known == NULL:
        return "One rank: there is no other clock to compare with."
    if line := waiting.untied_clocks(analysis.measures):
        return line
    hidden = duration(TRUST * known)
    return f"Clocks are known to within {duration(known)}: no wait below {hidden} is known."


def _skipped(analysis: Analysis) -> Markup | None:
    skipped = analysis.verdict.diagnosis.skipped
    if not skipped:
        return None
    lines = [
        tag("li", tag("code", clean(rule, 60)), f" {clean(reason, 300)}")
        for rule, reason in sorted(skipped.items())
    ]
    return tag(
        "details",
        tag("summary", "All rules that were skipped ", tag("small", str(len(lines)))),
        tag("ul", *lines),
    )
