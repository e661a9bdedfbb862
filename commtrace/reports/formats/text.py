"""The report for a terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commtrace.reports import Look, content
from commtrace.reports.content import findings
from commtrace.reports.content.prose import paragraphs
from commtrace.reports.content.tables import BAR
from commtrace.reports.fitting import fitted, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import JustifyMethod

    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Explanation, Verdict
    from commtrace.reports.content.tables import Section

__all__ = ["SUFFIX", "explain", "render"]

SUFFIX = ".txt"

_COLOURS = dict(zip(BAR, ("green", "cyan", "red", "yellow", "bright_black"), strict=True))
_BAR_AT_80 = 12
_ANY = Look()
_JUSTIFY: dict[str, JustifyMethod] = {"<": "left", ">": "right"}


def render(analysis: Analysis, look: Look = _ANY) -> str:
    """What a busy person needs to know, as wide as ``look`` says: the main thing first."""
    console, width = _console(look.color, look.width), look.width
    name, *facts = content.headline(analysis)
    _say(console, name, style="bold")
    for fact in facts:
        _say(console, fact)
    for line in content.verdict(analysis):
        _say(console, line, style="bold")
    for section in content.sections(analysis, bar=min(max(_BAR_AT_80 + width - 80, 0), 40)):
        _print(console, section)
    _list(console, "Notes", content.notes(analysis.notes))
    _print_findings(console, "Findings", analysis.verdict)
    _list(console, "Not checked", content.unchecked(analysis))
    return _written(console)


def explain(explanation: Explanation, look: Look = _ANY) -> str:
    """What a rule means, its thresholds, and what it says of its worked example."""
    console = _console(look.color, look.width)
    _say(console, explanation.rule, style="bold")
    for heading, texts in paragraphs(explanation.documentation):
        if heading:
            _title(console, heading)
        for text in texts:
            _say(console, text.replace("``", ""), "  ", "  ")
    if explanation.thresholds:
        _title(console, "Thresholds")
        for name, value in explanation.thresholds.items():
            _say(console, f"--threshold {explanation.rule}.{name}={value}", "  ", "    ")
    example = " ".join(explanation.example.split()).replace("``", "")
    _print_findings(console, f"Example: {example}", explanation.verdict)
    return _written(console)


def _console(color: bool, width: int) -> Console:
    # Texts are rich's Text objects: what stands in them is never taken for markup.
    return Console(
        file=StringIO(),
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        legacy_windows=False,
        _environ={},
    )


def _written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _say(console: Console, text: str, first: str = "", rest: str = "", style: str = "") -> None:
    console.print(Text(wrapped(text, console.width, first, rest), style=style))


def _title(console: Console, title: str) -> None:
    console.print()
    _say(console, title, style="bold")


def _list(console: Console, title: str, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        if not number:
            _title(console, title)
        _say(console, line, "- ", "  ")


def _print_findings(console: Console, title: str, verdict: Verdict) -> None:
    """All findings and good news, if there are any."""
    texts, closing = findings.texts(verdict), list(findings.closing(verdict))
    if texts or closing:
        _title(console, title)
    for number, text in enumerate(texts, 1):
        if number > 1:
            console.print()
        first = f"{number}. "
        indent = " " * len(first)
        _say(console, text.summary, first, indent, style="bold")
        for line in text.lines:
            _say(console, line, indent, indent)
    if texts and closing:
        console.print()
    for line in closing:
        _say(console, line)


def _print(console: Console, section: Section) -> None:
    _title(console, section.title)
    fit = fitted(section, console.width)
    table = Table(box=None, pad_edge=False, padding=(0, fit.gap, 0, 0), header_style="dim")
    columns = fit.section.columns
    height = max(name.count("\n") for name, _ in columns)
    for (name, align), width in zip(columns, fit.widths, strict=True):
        table.add_column(
            Text("\n" * (height - name.count("\n")) + name),
            justify=_JUSTIFY[align],
            overflow="ellipsis",
            no_wrap=True,
            width=width,
        )
    for row in fit.section.cells:
        table.add_row(*map(_cell, row))
    console.print(table)
    for line in fit.section.footer:
        _say(console, line, style="dim")


def _cell(text: str) -> Text:
    cell = Text(text)
    for glyph, colour in _COLOURS.items():
        cell.highlight_regex(f"{glyph}+", colour)
    return cell
