"""The report for a terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commtrace.reports import content

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from commtrace.analysis import Analysis

__all__ = ["render"]

_COLOURS = dict(zip(content.BAR, ("green", "cyan", "red", "yellow", "bright_black"), strict=True))
_BAR_AT_80 = 12
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
    name, facts = content.headline(analysis.run)
    console.print(Text(name, style="bold"))
    console.print(Text(facts))
    for section in content.sections(analysis, bar=min(max(_BAR_AT_80 + width - 80, 0), 40)):
        _print(console, section)
    if notes := content.notes(analysis):
        console.print(Text("\nNotes", style="bold"))
        for note in notes:
            console.print(Text(f"- {note}"))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _print(console: Console, section: content.Section) -> None:
    console.print(Text(f"\n{section.title}", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    height = max(name.count("\n") for name, _ in section.columns)
    for name, align in section.columns:
        head = Text("\n" * (height - name.count("\n")) + name)
        table.add_column(head, justify=_JUSTIFY[align], overflow="ellipsis", no_wrap=True)
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
