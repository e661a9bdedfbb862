"""The report as a notebook shows it: a fragment of HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from commtrace.reports import content
from commtrace.reports.content import findings

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Verdict
    from commtrace.reports.content.tables import Section

__all__ = ["bullets", "grid", "render"]

_ALIGN = {"<": "left", ">": "right"}


def render(analysis: Analysis) -> str:
    """The same facts as in the terminal; every text is escaped."""
    name, *facts = map(escape, content.headline(analysis))
    verdict = map(escape, content.verdict(analysis))
    parts = [
        f"<p><b>{name}</b><br>{'<br>'.join(facts)}</p>",
        f"<p><b>{'<br>'.join(verdict)}</b></p>",
        *(grid(section) for section in content.sections(analysis, bar=12)),
        bullets("Notes", content.notes(analysis.notes)),
        _findings(analysis.verdict),
        *(bullets(title, lines) for title, lines in content.unfound(analysis)),
    ]
    return f"<div>{''.join(parts)}</div>"


def bullets(title: str, lines: list[str]) -> str:
    """A list under a title; nothing if it is empty."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<p>{title}</p><ul>{items}</ul>" if lines else ""


def _findings(verdict: Verdict) -> str:
    listed = "".join(
        f"<li><b>{escape(text.summary)}</b><br>{'<br>'.join(map(escape, text.lines))}</li>"
        for text in findings.texts(verdict)
    )
    closing = "<br>".join(map(escape, findings.closing(verdict)))
    return f"<p>Findings</p><ol>{listed}</ol><p>{closing}</p>" if listed or closing else ""


def grid(section: Section) -> str:
    """A table under its title, and what else it says."""
    align = [_ALIGN[side] for _, side in section.columns]
    head = _row("th", align, [name for name, _ in section.columns])
    body = "".join(_row("td", align, row) for row in section.cells)
    footer = "".join(f"<br><small>{escape(line)}</small>" for line in section.footer)
    return f"<table><caption>{section.title}</caption>{head}{body}</table><p>{footer}</p>"


def _row(tag: str, align: list[str], cells: list[str]) -> str:
    return f"<tr>{''.join(_cell(tag, *pair) for pair in zip(align, cells, strict=True))}</tr>"


def _cell(tag: str, align: str, text: str) -> str:
    shown = escape(text).replace("\n", "<br>")
    return f'<{tag} style="text-align: {align}">{shown}</{tag}>'
