"""The report for a terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from commtrace.reports import Look, content
from commtrace.reports.content import findings
from commtrace.reports.content.prose import paragraphs
from commtrace.reports.content.tables import BAR

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Explanation, Verdict
    from commtrace.reports.content.tables import Section

__all__ = ["SUFFIX", "explain", "render"]

SUFFIX = ".txt"

_COLOURS = dict(zip(BAR, ("green", "cyan", "red", "yellow", "bright_black"), strict=True))
_BAR_AT_80 = 12
_ROOMY = 100
_ANY = Look()
_NAME = 8  # characters that a name is not cut below
_JUSTIFY: dict[str, JustifyMethod] = {"<": "left", ">": "right"}


def render(analysis: Analysis, look: Look = _ANY) -> str:
    """What a busy person needs to know, as wide as ``look`` says."""
    console, width = _console(look.color, look.width), look.width
    for line in content.headline(analysis):
        console.print(Text(line, style="bold"))
    for section in content.sections(analysis, bar=min(max(_BAR_AT_80 + width - 80, 0), 40)):
        _print(console, section)
    if notes := content.notes(analysis.notes):
        console.print(Text("\nNotes", style="bold"))
        for note in notes:
            console.print(Text(f"- {note}"))
    _print_findings(console, "Findings", analysis.verdict)
    return _written(console)


def explain(explanation: Explanation, look: Look = _ANY) -> str:
    """What a rule means, its thresholds, and what it says of its worked example."""
    console = _console(look.color, look.width)
    console.print(Text(explanation.rule, style="bold"))
    for heading, texts in paragraphs(explanation.documentation):
        if heading:
            console.print(Text(f"\n{heading}", style="bold"))
        for text in texts:
            console.print(Padding(Text(text.replace("``", "")), (0, 0, 0, 2)))
    if explanation.thresholds:
        console.print(Text("\nThresholds", style="bold"))
        for name, value in explanation.thresholds.items():
            console.print(Text(f"  --threshold {explanation.rule}.{name}={value}"))
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


def _print_findings(console: Console, title: str, verdict: Verdict) -> None:
    console.print(Text(f"\n{title}", style="bold"))
    for number, told in enumerate(findings.told(verdict), 1):
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_row(Text(f"{number}."), Text(told.summary, style="bold"))
        for line in told.lines:
            table.add_row("", Text(line))
        console.print(table)
        console.print()
    for line in findings.closing(verdict):
        console.print(Text(line))


def _print(console: Console, section: Section) -> None:
    console.print(Text(f"\n{section.title}", style="bold"))
    gap = 2 if console.width >= _ROOMY else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    height = max(name.count("\n") for name, _ in section.columns)
    widths = [
        max(cell_len(line) for text in texts for line in text.split("\n"))
        for texts in zip([name for name, _ in section.columns], *section.cells, strict=True)
    ]
    too_wide = max(sum(widths) + gap * (len(widths) - 1) - console.width, 0)
    names = [place for place, (_, align) in enumerate(section.columns) if align == "<"]
    longest = max(names, key=lambda place: widths[place], default=None)
    for place, (name, align) in enumerate(section.columns):
        widest = max(cell_len(line) for row in section.cells for line in row[place].split("\n"))
        table.add_column(
            Text("\n" * (height - name.count("\n")) + name),
            justify=_JUSTIFY[align],
            overflow="ellipsis",
            no_wrap=True,
            min_width=widest if align == ">" else None,  # names are cut, numbers are not
            max_width=max(widths[place] - too_wide, _NAME) if place == longest else None,
        )
    for row in section.cells:
        table.add_row(*map(_cell, row))
    console.print(table)
    for line in section.footer:
        console.print(Text(line, style="dim"))


def _cell(text: str) -> Text:
    cell = Text(text)
    for glyph, colour in _COLOURS.items():
        cell.highlight_regex(f"{glyph}+", colour)
    return cell
