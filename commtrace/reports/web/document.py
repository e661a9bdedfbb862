"""The page: its parts in order, in one file that asks nobody for anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from commtrace.reports.web.bandwidth_chart import bandwidth_chart
from commtrace.reports.web.data_tables import data_tables
from commtrace.reports.web.finding_cards import finding_cards
from commtrace.reports.web.markup import Markup, hashed, tag
from commtrace.reports.web.matrices import matrices
from commtrace.reports.web.step_time import step_time
from commtrace.reports.web.timeline import timeline
from commtrace.reports.web.trace_quality import trace_quality
from commtrace.reports.web.wait_maps import wait_maps
from commtrace.reports.web.what_ran import what_ran
from commtrace.units import clean

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["MOST_BYTES", "document"]

MOST_BYTES = 4_000_000
"""No page is larger."""

_ASSETS = resources.files("commtrace.reports.web") / "assets"
_SCRIPTS = ("timeline_data.js", "timeline_view.js", "timeline.js", "tables.js")


@dataclass(frozen=True)
class _Budget:
    """How many events the timeline, and rows each table may have."""

    events: int
    rows: int


_BUDGETS = tuple(_Budget(100_000 // 4**i, 1_000 // 4**i) for i in range(6))


def document(analysis: Analysis) -> str:
    """The whole page, thinned until it is small enough."""
    page = ""
    for budget in _BUDGETS:
        page = _page(analysis, budget)
        if len(page.encode("utf-8", "replace")) <= MOST_BYTES:
            break
    return page


def _page(analysis: Analysis, budget: _Budget) -> str:
    style = _read("report.css")
    script = "\n".join(map(_read, _SCRIPTS))
    sections = list(_sections(analysis, budget))
    links = [tag("a", title, href=f"#{name}") for name, title, _ in sections]
    shown = [tag("section", tag("h2", title), inner, id=name) for name, title, inner in sections]
    return Template(_read("page.html")).substitute(
        title=tag("title", f"{clean(analysis.run.name, 80)} · commtrace"),
        style_hash=hashed(style),
        style=style,
        script_hash=hashed(script),
        script=script,
        header=what_ran(analysis),
        links="".join(links),
        sections="\n".join(shown),
    )


def _sections(analysis: Analysis, budget: _Budget) -> Iterator[tuple[str, str, Markup]]:
    parts = (
        ("verdict", "Verdict", finding_cards(analysis)),
        ("time", "Where the time of a step goes", step_time(analysis)),
        ("timeline-section", "Timeline", timeline(analysis, budget.events)),
        ("bandwidth", "Bandwidth against size", bandwidth_chart(analysis)),
        ("matrices", "Who sends to whom", matrices(analysis)),
        ("waits", "Who waits for whom", wait_maps(analysis)),
        ("tables", "Tables", data_tables(analysis, budget.rows)),
        ("quality", "The trace's quality", trace_quality(analysis)),
    )
    return ((name, title, inner) for name, title, inner in parts if inner is not None)


def _read(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")
