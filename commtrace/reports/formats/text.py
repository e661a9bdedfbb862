"""The report for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.reports import Look, content
from commtrace.reports.content import findings
from commtrace.reports.content.prose import paragraphs
from commtrace.reports.page import Page, page, say, table, title, written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Explanation, Verdict

__all__ = ["SUFFIX", "explain", "render"]

SUFFIX = ".txt"

_BAR_AT_80 = 12
_ANY = Look()


def render(analysis: Analysis, look: Look = _ANY) -> str:
    """What a busy person needs to know, as wide as ``look`` says: the main thing first."""
    console, width = page(look), look.width
    run, *facts = content.headline(analysis)
    say(console, run, style="bold")
    for fact in facts:
        say(console, fact)
    for line in content.verdict(analysis):
        say(console, line, style="bold")
    for section in content.sections(analysis, bar=min(max(_BAR_AT_80 + width - 80, 0), 40)):
        table(console, section)
    _list(console, "Notes", content.notes(analysis.notes))
    _print_findings(console, "Findings", analysis.verdict)
    for name, lines in content.unfound(analysis):
        _list(console, name, lines)
    return written(console)


def explain(explanation: Explanation, look: Look = _ANY) -> str:
    """What a rule means, its thresholds, and what it says of its worked example."""
    console = page(look)
    say(console, explanation.rule, style="bold")
    for heading, texts in paragraphs(explanation.documentation):
        if heading:
            title(console, heading)
        for text in texts:
            say(console, text.replace("``", ""), "  ", "  ")
    if explanation.thresholds:
        title(console, "Thresholds")
        for name, value in explanation.thresholds.items():
            say(console, f"--threshold {explanation.rule}.{name}={value}", "  ", "    ")
    example = " ".join(explanation.example.split()).replace("``", "")
    _print_findings(console, f"Example: {example}", explanation.verdict)
    return written(console)


def _list(console: Page, name: str, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        if not number:
            title(console, name)
        say(console, line, "- ", "  ")


def _print_findings(console: Page, name: str, verdict: Verdict) -> None:
    """All findings and good news, if there are any."""
    texts, closing = findings.texts(verdict), list(findings.closing(verdict))
    if texts or closing:
        title(console, name)
    for number, text in enumerate(texts, 1):
        if number > 1:
            say(console, "")
        first = f"{number}. "
        indent = " " * len(first)
        say(console, text.summary, first, indent, style="bold")
        for line in text.lines:
            say(console, line, indent, indent)
    if texts and closing:
        say(console, "")
    for line in closing:
        say(console, line)
