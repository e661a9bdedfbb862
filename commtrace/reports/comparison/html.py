"""A comparison as one HTML page: the waterfall, every step of both sides, the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from commtrace.comparing.gate import Gate
from commtrace.reports import Look, content
from commtrace.reports.content import compared_tables, comparison
from commtrace.reports.web.bars import Bar, Part, bars, legend
from commtrace.reports.web.markup import Markup, hashed, tag
from commtrace.reports.web.typical_steps import typical_steps
from commtrace.units import counted, duration

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared
    from commtrace.reports.content.tables import Section

__all__ = ["SUFFIX", "render"]

SUFFIX = ".html"
_ANY, _NONE = Look(), Gate()
_KINDS = {"communication": "transfer"}  # others are called as they are there
_ALIGN = {"<": None, ">": "right"}
_MOST_STEPS = 200
_POLICY = "default-src 'none'; style-src '{}'; base-uri 'none'; form-action 'none'"
_META = f"""<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">"""
_STYLE = """
.gap { fill: none } .whole { fill: var(--compute) }
.more { fill: var(--wait) } .less { fill: var(--good) } .aside { opacity: .4 }
"""


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:  # noqa: ARG001 - a page has its own
    """The same facts as in the terminal, and pictures; nothing is loaded from elsewhere."""
    css = resources.files("commtrace.reports.web").joinpath("assets/report.css")
    style = css.read_text("utf-8") + _STYLE
    title = comparison.title(compared)
    failure = gate.failed(compared)
    head = tag(
        "head",
        Markup(_META.format(hashed(style))),
        tag("title", f"{title} · commtrace"),
        tag("style", Markup(style)),
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
    base, candidate = compared.typical
    if base is not None and candidate is not None:
        named = {row["rank"] for row in compared.changes.dicts()} - {None}
        yield _section("A typical step", *typical_steps(base, candidate, named))
    if any(sum(parts.values()) for *_, parts in compared.paths):
        yield _section("Every step's critical path", *_paths(compared))
    for section in compared_tables.sections(compared):
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
    shown = compared.paths[:_MOST_STEPS]
    longest = max(sum(parts.values()) for *_, parts in shown)
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
        for name, counts, parts in shown
    ]
    yield bars(rows, longest, "The critical path of every step")
    if left := len(compared.paths) - len(shown):
        yield tag("p", f"{counted(left, 'more step')}: not drawn.", class_="hint")


def _table(section: Section) -> Markup:
    align = [_ALIGN[side] for _, side in section.columns]
    head = _row("th", align, [name.replace("\n", " ") for name, _ in section.columns])
    return tag(
        "div",
        tag("table", head, *(_row("td", align, its) for its in section.cells)),
        class_="scroll",
    )


def _row(cell: str, align: list[str | None], texts: list[str]) -> Markup:
    cells = (tag(cell, text, class_=side) for side, text in zip(align, texts, strict=True))
    return tag("tr", *cells)
