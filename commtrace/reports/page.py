"""Paragraphs and tables on a page as wide as a terminal."""

from __future__ import annotations

import re
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from commtrace.reports.content.tables import BAR
from commtrace.reports.fitting import fitted
from commtrace.reports.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commtrace.reports import Look
    from commtrace.reports.content.tables import Section

__all__ = ["Page", "page", "say", "table", "title", "written"]

_CODES = {"bold": 1, "dim": 2, **dict(zip(BAR, (32, 36, 31, 33, 90), strict=True))}
"""Of styles, and of the glyphs of bars: what ANSI escapes for terminals call them."""
_BAR = re.compile("|".join(f"{glyph}+" for glyph in BAR))


class Page(Struct):
    """What is on it so far, and how it looks."""

    width: int
    color: bool
    lines: list[str]


def page(look: Look) -> Page:
    """An empty page."""
    return Page(look.width, look.color, [])


def written(page: Page) -> str:
    """What is on a page."""
    return "".join(f"{line.rstrip()}\n" for line in "\n".join(page.lines).splitlines())


def say(page: Page, text: str, first: str = "", rest: str = "", style: str = "") -> None:
    """A paragraph, whose first line begins with one text and all others with another."""
    lines = wrapped(text, page.width, first, rest).split("\n")
    page.lines += [_styled(page, line, style) for line in lines]


def title(page: Page, text: str) -> None:
    """A heading."""
    page.lines.append("")
    say(page, text, style="bold")


def table(page: Page, section: Section) -> None:
    """A table with its title and what else it says."""
    title(page, section.title)
    fit = fitted(section, page.width)
    names, aligns = zip(*fit.section.columns, strict=True)
    height = max(name.count("\n") for name in names)
    header = ["\n" * (height - name.count("\n")) + name for name in names]

    def lines(cells: Sequence[str]) -> Iterator[str]:
        for texts in zip_longest(*(cell.split("\n") for cell in cells), fillvalue=""):
            line = (" " * fit.gap).join(map(_aligned, texts, aligns, fit.widths)).rstrip()
            wide = cell_len(line) > page.width
            yield f"{set_cell_size(line, page.width - 1)}…" if wide else line

    page.lines += [_styled(page, line, "dim") for line in lines(header)]
    for line in chain.from_iterable(map(lines, fit.section.cells)):
        page.lines.append(_BAR.sub(lambda part: _styled(page, part[0], part[0][0]), line))
    for line in fit.section.footer:
        say(page, line, style="dim")


def _aligned(text: str, align: str, width: int) -> str:
    room = " " * (width - cell_len(text))
    return f"{room}{text}" if align == ">" else f"{text}{room}"


def _styled(page: Page, text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if page.color and style and text else text
