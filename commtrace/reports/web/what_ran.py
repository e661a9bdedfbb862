"""The head of the page: what ran, and the few numbers that matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from commtrace.causal.steps import path_of
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.exposed_waits import exposed_waits
from commtrace.reports import content
from commtrace.reports.content.findings import causes
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
        step_ns = int(np.median(path.groupby("step")["time_ns"].sum()))
        yield _tile("median step", ms(step_ns), f"of {counted(verdict.steps, 'step')}")
    else:
        yield _tile("time recorded", duration(analysis.run.span_ns), "first start to last end")
    known = devices(run).dropna(subset="span_ns")
    span_ns = int(known["span_ns"].sum())
    if span_ns and known["communication_ns"].any():
        exposed = int(known["exposed_communication_ns"].sum())
        yield _tile("exposed communication", percent(exposed, span_ns), "mean of all ranks")
        waited = int(exposed_waits(run)["exposed_wait_ns"].sum())
        if len(analysis.run.ranks) > 1:
            yield _tile("of that waiting", percent(waited, exposed), "for other ranks to arrive")
    found = causes(verdict)
    if found and found[0].cost_ns:
        share = percent(found[0].cost_ns, verdict.step_time_ns)
        whole = "step time" if verdict.in_steps else "the run"
        yield _tile("largest potential saving", share, f"of {whole} ({clean(found[0].rule, 40)})")


def _tile(name: str, value: str, hint: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value), tag("dd", hint, class_="hint"))
