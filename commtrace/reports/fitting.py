"""Tables, as wide as there is room."""

from __future__ import annotations

from msgspec import Struct
from rich.cells import cell_len

from commtrace.reports.content.tables import Section, on_one_line
from commtrace.units import NOTHING, cut

__all__ = ["Fitted", "fitted"]

_ROOMY = 100
_READABLE = 16  # characters: columns go before a name is cut below these
_NAME = 8  # and these a name keeps in any case


class Fitted(Struct, frozen=True):
    """A section without the columns for which there is no room, each column's width, the gaps."""

    section: Section
    widths: tuple[int, ...]
    gap: int


def fitted(section: Section, width: int) -> Fitted:
    """The section at most so wide: columns are dropped as it says, then names are cut.

    What says nothing goes first. Numbers are never cut.
    """
    gaps = (2, 1) if width >= _ROOMY else (1,)
    here = [name for name in section.drop if name in dict(section.columns)]
    order = sorted(here, key=lambda name: not _says_nothing(section, name))
    dropped: list[str] = []
    while True:
        left = _without(section, dropped)
        widths = _widths(left)
        name = _longest_name(left, widths)
        spare = max(widths[name] - _READABLE, 0) if name is not None else 0
        room = next((gap for gap in gaps if _total(widths, gap) <= width), 1)
        if _total(widths, room) - spare <= width or len(dropped) == len(order):
            break
        dropped.append(order[len(dropped)])
    if name is not None:
        least = min(widths[name], _NAME)
        widths[name] = max(widths[name] - max(_total(widths, room) - width, 0), least)
        left = _cut(left, name, widths[name])
    return Fitted(_noted(left, dropped), tuple(widths), room)


def _says_nothing(section: Section, name: str) -> bool:
    place = [each for each, _ in section.columns].index(name)
    nothing = {NOTHING, "0"} if section.columns[place][1] == ">" else {NOTHING}
    return all(row[place].split("\n")[0] in nothing for row in section.cells)


def _without(section: Section, dropped: list[str]) -> Section:
    kept = [place for place, (name, _) in enumerate(section.columns) if name not in dropped]
    columns = tuple(section.columns[place] for place in kept)
    cells = [[row[place] for place in kept] for row in section.cells]
    return Section(section.title, columns, cells, section.footer)


def _widths(section: Section) -> list[int]:
    names = [name for name, _ in section.columns]
    return [
        max(cell_len(line) for text in texts for line in text.split("\n"))
        for texts in zip(names, *section.cells, strict=True)
    ]


def _total(widths: list[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _longest_name(section: Section, widths: list[int]) -> int | None:
    names = [place for place, (_, align) in enumerate(section.columns) if align == "<"]
    return max(names, key=lambda place: widths[place], default=None)


def _cut(section: Section, place: int, width: int) -> Section:
    """The names of one column cut in their middle; what they are indented by stays."""

    def shorter(cell: str) -> str:
        return "\n".join(
            " " * (len(line) - len(line.lstrip())) + cut(line.lstrip(), _left(line, width))
            for line in cell.split("\n")
        )

    cells = [[*row[:place], shorter(row[place]), *row[place + 1 :]] for row in section.cells]
    return Section(section.title, section.columns, cells, section.footer)


def _left(line: str, width: int) -> int:
    return max(width - (len(line) - len(line.lstrip())), 2)


def _noted(section: Section, dropped: list[str]) -> Section:
    if not dropped:
        return section
    names = ", ".join(map(on_one_line, dropped)).rstrip(".")
    footer = (*section.footer, f"Not shown at this width: {names}.")
    return Section(section.title, section.columns, section.cells, footer)
