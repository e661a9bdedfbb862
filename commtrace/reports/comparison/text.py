"""A comparison for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.comparing.gate import Gate
from commtrace.reports import Look, content
from commtrace.reports.content import compared_tables, comparison
from commtrace.reports.page import page, say, table, title, written

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["SUFFIX", "render"]

SUFFIX = ".txt"
_ANY, _NONE = Look(), Gate()


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:
    """The verdict, what it rests on, what changed, as wide as ``look`` says."""
    console = page(look)
    say(console, comparison.title(compared), style="bold")
    say(console, content.what_ran(compared.candidate[0]))
    say(console, comparison.headline(compared), style="bold")
    for line in comparison.summary(compared):
        say(console, line)
    if failure := gate.failed(compared):
        say(console, f"Gate: failed: {failure}", style="bold")
    for section in compared_tables.sections(compared):
        table(console, section)
    for name, lines in (*comparison.findings(compared), ("Notes", content.notes(compared.notes))):
        if lines:
            title(console, name)
        for line in lines:
            say(console, line, "- ", "  ")
    return written(console)
