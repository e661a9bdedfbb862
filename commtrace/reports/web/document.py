"""The page: its parts in order, in one file that asks nobody for anything."""

from __future__ import annotations

from collections.abc import Callable
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
from commtrace.units import clean, mb

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


_BUDGETS = tuple(_Budget(100_000 // 4**i, max(1_000 // 4**i, 5)) for i in range(6))
_TITLES = {
    "verdict": "Verdict",
    "time": "Where the time goes",
    "timeline-section": "Timeline",
    "bandwidth": "Bandwidth against size",
    "matrices": "Who sends to whom",
    "waits": "Who waits for whom",
    "tables": "Tables",
    "quality": "The trace's quality",
}
_FIXED: dict[str, Callable[[Analysis], Markup | None]] = {
    "verdict": finding_cards,
    "time": step_time,
    "bandwidth": bandwidth_chart,
    "matrices": matrices,
    "waits": wait_maps,
    "quality": trace_quality,
}
_Sections = dict[str, Markup | None]


def document(analysis: Analysis) -> str:
    """The whole page, thinned until it is small enough, at last without its largest sections."""
    fixed = {name: draw(analysis) for name, draw in _FIXED.items()}
    sections: _Sections = {}
    for budget in _BUDGETS:
        sections = {
            **fixed,
            "timeline-section": timeline(analysis, budget.events),
            "tables": data_tables(analysis, budget.rows),
        }
        page = _page(analysis, sections)
        if _bytes(page) <= MOST_BYTES:
            return page
    for name in sorted(sections, key=lambda name: (name == "verdict", -_bytes(sections[name]))):
        sections[name] = tag("p", _LEFT_OUT, class_="hint")
        page = _page(analysis, sections)
        if _bytes(page) <= MOST_BYTES:
            break
    return page


_LEFT_OUT = (
    f"Left out: with it the page would be larger than {mb(MOST_BYTES)}. --format json has all."
)


def _page(analysis: Analysis, sections: _Sections) -> str:
    style = _read("report.css")
    script = "\n".join(map(_read, _SCRIPTS))
    shown = {name: inner for name in _TITLES if (inner := sections[name]) is not None}
    return Template(_read("page.html")).substitute(
        title=tag("title", f"{clean(analysis.run.name, 80)} · commtrace"),
        style_hash=hashed(style),
        style=style,
        script_hash=hashed(script),
        script=script,
        header=what_ran(analysis),
        links="".join(tag("a", _TITLES[name], href=f"#{name}") for name in shown),
        sections="\n".join(
            tag("section", tag("h2", _TITLES[name]), inner, id=name)
            for name, inner in shown.items()
        ),
    )


def _bytes(text: str | None) -> int:
    return len((text or "").encode("utf-8", "replace"))


def _read(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")
