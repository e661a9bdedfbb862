"""A comparison as one HTML page: the waterfall, every step of both sides, the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from commtrace.comparing.gate import Gate
from commtrace.reports import Look, content
from commtrace.reports.content import comparison
from commtrace.reports.web.bars import Bar, Part, bars, legend
from commtrace.reports.web.markup import Markup, tag
from commtrace.units import duration

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared
    from commtrace.reports.content.tables import Section

__all__ = ["SUFFIX", "render"]

SUFFIX = ".html"
_ANY, _NONE = Look(), Gate()
_KINDS = {"communication": "transfer"}  # others are called as they are there
_ALIGN = {"<": "left", ">": "right"}
_STYLE = """
.gap { fill: none } .whole { fill: var(--compute) }
.more { fill: var(--wait) } .less { fill: var(--good) } .aside { opacity: .4 }
"""


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:  # noqa: ARG001 - a page has its own
    """The same facts as in the terminal, and pictures; nothing is loaded from elsewhere."""
    style = (
        resources.files("commtrace.reports.web").joinpath("assets/report.css").read_text("utf-8")
    )
    title = comparison.title(compared)
    failure = gate.failed(compared)
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        tag("title", f"{title} · commtrace"),
        tag("style", Markup(style + _STYLE)),
    )
    body = tag(
        "body",
        tag("header", tag("h1", title), tag("p", comparison.headline(compared), class_="verdict")),
        tag("p", f"Gate: failed: {failure}", class_="verdict") if failure else None,
        *(tag("p", line, class_="fact") for line in comparison.summary(compared)),
        tag("main", *_sections(compared)),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _sections(compared: Compared) -> Iterator[Markup]:
    steps = comparison.bars(compared)
    if steps:
        yield _section("From base to candidate", _waterfall(steps))
    if any(sum(parts.values()) for *_, parts in compared.paths):
        yield _section("Every step's critical path", *_paths(compared))
    for section in comparison.sections(compared):
        footer = (tag("p", line, class_="hint") for line in section.footer)
        yield _section(section.title, _table(section), *footer)
    for name, lines in (*comparison.findings(compared), ("Notes", content.notes(compared.notes))):
        if lines:
            yield _section(name, tag("ul", *(tag("li", line) for line in lines)))


def _section(title: str, *inner: Markup) -> Markup:
    return tag("section", tag("h2", title), *inner)


def _waterfall(steps: Sequence[tuple[str, int, int]]) -> Markup:
    rows = []
    for number, (name, begin, end) in enumerate(steps):
        whole = number in (0, len(steps) - 1)
        sign = "" if whole or begin == end else "+" if end > begin else "-"
        text = f"{sign}{duration(abs(end - begin))}"
        kind = "whole" if whole else "more" if end > begin else "less"
        parts = (Part("gap", min(begin, end), ""), Part(kind, abs(end - begin), text))
        rows.append(Bar(name, parts, text))
    return bars(rows, max(max(begin, end) for _, begin, end in steps), "From base to candidate")


def _paths(compared: Compared) -> Iterator[Markup]:
    """Both sides' steps of one number are below each other; pale ones do not count."""
    kinds = dict.fromkeys(kind for *_, parts in compared.paths for kind in parts)
    yield legend(dict.fromkeys(_KINDS.get(kind, kind) for kind in kinds))
    longest = max(sum(parts.values()) for *_, parts in compared.paths)
    rows = [
        Bar(
            name,
            [
                Part(
                    _KINDS.get(kind, kind) + ("" if counts else " aside"),
                    time,
                    f"{kind} {duration(time)}",
                )
                for kind, time in parts.items()
            ],
            duration(sum(parts.values())) + ("" if counts else " (not counted)"),
        )
        for name, counts, parts in compared.paths
    ]
    yield bars(rows, longest, "The critical path of every step")


def _table(section: Section) -> Markup:
    align = [_ALIGN[side] for _, side in section.columns]
    head = _row("th", align, [name.replace("\n", " ") for name, _ in section.columns])
    return tag(
        "div",
        tag("table", head, *(_row("td", align, its) for its in section.cells)),
        class_="scroll",
    )


def _row(cell: str, align: list[str], texts: list[str]) -> Markup:
    cells = (
        tag(cell, text, style=f"text-align: {side}")
        for side, text in zip(align, texts, strict=True)
    )
    return tag("tr", *cells)
