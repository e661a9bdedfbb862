"""The report for a terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commtrace.reports import content
from commtrace.reports.tables import BAR

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from commtrace.analysis import Analysis
    from commtrace.reports.tables import Section

__all__ = ["render"]

_COLOURS = dict(zip(BAR, ("green", "cyan", "red", "yellow", "bright_black"), strict=True))
_BAR_AT_80 = 12
_ROOMY = 100
_JUSTIFY: dict[str, JustifyMethod] = {"<": "left", ">": "right"}


def render(analysis: Analysis, *, color: bool = False, width: int = 80) -> str:
    """What a busy person needs to know, ``width`` characters wide."""
    out = StringIO()
    # Texts are rich's Text objects: what stands in them is never taken for markup.
    console = Console(
        file=out,
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        legacy_windows=False,
        _environ={},
    )
    name, facts, *verdicts = content.headline(analysis)
    for line, style in ((name, "bold"), (facts, ""), *((verdict, "bold") for verdict in verdicts)):
        console.print(Text(line, style=style))
    for section in content.sections(analysis, bar=min(max(_BAR_AT_80 + width - 80, 0), 40)):
        _print(console, section)
    if notes := content.notes(analysis):
        console.print(Text("\nNotes", style="bold"))
        for note in notes:
            console.print(Text(f"- {note}"))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _print(console: Console, section: Section) -> None:
    console.print(Text(f"\n{section.title}", style="bold"))
    gap = 2 if console.width >= _ROOMY else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    height = max(name.count("\n") for name, _ in section.columns)
    for place, (name, align) in enumerate(section.columns):
        widest = max(cell_len(line) for row in section.cells for line in row[place].split("\n"))
        table.add_column(
            Text("\n" * (height - name.count("\n")) + name),
            justify=_JUSTIFY[align],
            overflow="ellipsis",
            no_wrap=True,
            min_width=widest if align == ">" else None,  # names are cut, numbers are not
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
