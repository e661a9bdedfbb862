"""A comparison as a notebook shows it: a fragment of HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from commtrace.reports import content
from commtrace.reports.content import compared_tables, comparison
from commtrace.reports.notebook import bullets, grid

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["render"]


def render(compared: Compared) -> str:
    """The same facts as in the terminal; every text is escaped."""
    facts = map(escape, comparison.summary(compared))
    parts = [
        f"<p><b>{escape(comparison.title(compared))}</b></p>",
        f"<p><b>{escape(comparison.headline(compared))}</b><br>{'<br>'.join(facts)}</p>",
        *map(grid, compared_tables.sections(compared)),
        *(bullets(name, lines) for name, lines in comparison.findings(compared)),
        bullets("Notes", content.notes(compared.notes)),
    ]
    return f"<div>{''.join(parts)}</div>"
