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

__all__ = ["render"]

_ALIGN = {"<": "left", ">": "right"}


def render(analysis: Analysis) -> str:
    """The same facts as in the terminal; every text is escaped."""
    name, *facts = map(escape, content.headline(analysis))
    parts = [f"<p><b>{name}</b><br>{'<br>'.join(facts)}</p>"]
    parts += [_section(section) for section in content.sections(analysis, bar=12)]
    if notes := content.notes(analysis.notes):
        parts.append(
            f"<p>Notes</p><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"
        )
    parts.append(_findings(analysis.verdict))
    return f"<div>{''.join(parts)}</div>"


def _findings(verdict: Verdict) -> str:
    listed = "".join(
        f"<li><b>{escape(told.summary)}</b><br>{'<br>'.join(map(escape, told.lines))}</li>"
        for told in findings.told(verdict)
    )
    closing = "<br>".join(map(escape, findings.closing(verdict)))
    return f"<p>Findings</p><ol>{listed}</ol><p>{closing}</p>"


def _section(section: Section) -> str:
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
