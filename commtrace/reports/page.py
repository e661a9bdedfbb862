"""Paragraphs and tables on a page as wide as a terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commtrace.reports.content.tables import BAR
from commtrace.reports.fitting import fitted
from commtrace.reports.wrapping import wrapped

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from commtrace.reports import Look
    from commtrace.reports.content.tables import Section

__all__ = ["Console", "page", "say", "table", "title", "written"]

_COLOURS = dict(zip(BAR, ("green", "cyan", "red", "yellow", "bright_black"), strict=True))
_JUSTIFY: dict[str, JustifyMethod] = {"<": "left", ">": "right"}


def page(look: Look) -> Console:
    """An empty page."""
    # Texts are rich's Text objects: what stands in them is never taken for markup.
    return Console(
        file=StringIO(),
        width=look.width,
        color_system="standard" if look.color else None,
        force_terminal=look.color,
        legacy_windows=False,
        _environ={},
    )


def written(console: Console) -> str:
    """What is on a page."""
    assert isinstance(console.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def say(console: Console, text: str, first: str = "", rest: str = "", style: str = "") -> None:
    """A paragraph, whose first line begins with one text and all others with another."""
    console.print(Text(wrapped(text, console.width, first, rest), style=style))


def title(console: Console, text: str) -> None:
    """A heading."""
    console.print()
    say(console, text, style="bold")


def table(console: Console, section: Section) -> None:
    """A table with its title and what else it says."""
    title(console, section.title)
    fit = fitted(section, console.width)
    grid = Table(box=None, pad_edge=False, padding=(0, fit.gap, 0, 0), header_style="dim")
    columns = fit.section.columns
    height = max(name.count("\n") for name, _ in columns)
    for (name, align), width in zip(columns, fit.widths, strict=True):
        grid.add_column(
            Text("\n" * (height - name.count("\n")) + name),
            justify=_JUSTIFY[align],
            overflow="ellipsis",
            no_wrap=True,
            width=width,
        )
    for row in fit.section.cells:
        grid.add_row(*map(_cell, row))
    console.print(grid)
    for line in fit.section.footer:
        say(console, line, style="dim")


def _cell(text: str) -> Text:
    cell = Text(text)
    for glyph, colour in _COLOURS.items():
        if glyph in text:
            cell.highlight_regex(f"{glyph}+", colour)
    return cell
