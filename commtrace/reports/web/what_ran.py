"""The head of the page: what ran, and the few numbers that matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commtrace.causal.steps import path_of
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.exposed_waits import exposed_waits
from commtrace.metrics.run.sampled import is_sampled
from commtrace.reports import content
from commtrace.reports.content.critical_path import median_step_ns
from commtrace.reports.content.findings import causes
from commtrace.reports.content.saving import share_of
from commtrace.reports.web.markup import Markup, tag
from commtrace.units import clean, counted, duration, ms, percent

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["what_ran"]


def what_ran(analysis: Analysis) -> Markup:
    """The name, what ran, and the most important numbers."""
    name, *facts = content.headline(analysis)
    return tag(
        "header",
        tag("p", "commtrace report", class_="brand"),
        tag("h1", name),
        *(tag("p", fact, class_="fact") for fact in facts),
        tag("dl", *_tiles(analysis), class_="tiles"),
    )


def _tiles(analysis: Analysis) -> Iterator[Markup]:
    verdict, run = analysis.verdict, analysis.measures
    path = path_of(run)
    if path is not None and len(path) and verdict.in_steps:
        step_ns = int(median_step_ns(path))
        yield _tile("median step", ms(step_ns), f"of {counted(verdict.steps, 'step')}")
    else:
        yield _tile("time recorded", duration(analysis.run.span_ns), "first start to last end")
    known = [row for row in devices(run).dicts() if row["span_ns"] is not None]
    span_ns = sum(row["span_ns"] for row in known)
    communicates = any(row["communication_ns"] for row in known)
    if span_ns and communicates and not is_sampled(run):
        exposed = sum(row["exposed_communication_ns"] or 0 for row in known)
        yield _tile("exposed communication", percent(exposed, span_ns), "mean of all ranks")
        waited = int(exposed_waits(run).ints("exposed_wait_ns").sum())
        if len(analysis.run.ranks) > 1:
            yield _tile("of that waiting", percent(waited, exposed), "for other ranks to arrive")
    found = causes(verdict)
    if found and found[0].cost_ns:
        share, whole = share_of(found[0], verdict)
        yield _tile("largest potential saving", share, f"of {whole} ({clean(found[0].rule, 40)})")


def _tile(name: str, value: str, hint: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value), tag("dd", hint, class_="hint"))
