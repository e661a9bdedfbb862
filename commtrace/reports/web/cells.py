"""A grid of coloured cells: matrices and heat maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from commtrace.reports.web.markup import Markup, number, tag

__all__ = ["Cell", "Ramp", "cells"]

Ramp = Literal["blue", "orange", "red"]

_LEVELS = 8
_DARK = 5  # from this level on a text is in the other colour
_LETTER = 6.2  # how wide one is
_PER_LABEL = 14  # pixels that a label needs
_MOST_PX = 440  # of all columns


@dataclass(frozen=True)
class Cell:
    """A cell: where it is, how much there is, what it says when asked, what is written in it."""

    row: int
    column: int
    value: float
    tip: str
    text: str = ""


def cells(
    found: Sequence[Cell],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    ramp: Ramp,
    label: str,
    most: float | None = None,
    texts: bool = False,
) -> Markup:
    """The cells, coloured in steps up to the largest, or to ``most``; of 0 are none."""
    top = most or max((cell.value for cell in found), default=0)
    small = max(len(rows), len(columns)) > 16
    wide = max((len(cell.text) for cell in found), default=0) if texts and not small else 0
    named = max((len(name) for name in columns), default=0)
    width = max(min(36, _MOST_PX / max(len(columns), 1)), 6)
    width = max(wide, named) * _LETTER + 12 if wide else width
    height = max(min(26, 1.4 * _MOST_PX / max(len(rows), 1)), 6)
    left = max((len(name) for name in rows), default=0) * _LETTER + 8
    drawn = [
        part
        for cell in found
        if cell.value > 0
        for part in _cell(cell, left, width, height, ramp, top, bool(wide))
    ]
    total = left + width * len(columns) + 24, 20 + height * len(rows) + 4
    return tag(
        "div",
        tag(
            "svg",
            tag(
                "rect",
                class_="ground",
                x=left,
                y=20,
                width=width * len(columns),
                height=height * len(rows),
            ),
            *drawn,
            *_names(rows, columns, left, width, height),
            viewBox=f"0 0 {number(total[0])} {number(total[1])}",
            width=total[0],
            height=total[1],
            role="img",
            aria_label=label,
        ),
        class_="scroll",
    )


def _cell(
    cell: Cell, left: float, width: float, height: float, ramp: str, top: float, with_text: bool
) -> Iterator[Markup]:
    level = min(max(round(_LEVELS * cell.value / top), 1), _LEVELS)
    x, y = left + cell.column * width, 20 + cell.row * height
    gap = 1 if width > 8 else 0
    yield tag(
        "rect",
        tag("title", cell.tip),
        class_=f"{ramp}{level}",
        x=x,
        y=y,
        width=width - gap,
        height=height - gap if height > 8 else height,
    )
    if with_text:
        yield tag(
            "text",
            cell.text,
            class_="on-dark" if level >= _DARK else "on-light",
            x=x + width / 2,
            y=y + height / 2 + 4,
            text_anchor="middle",
        )


def _names(
    rows: Sequence[str], columns: Sequence[str], left: float, width: float, height: float
) -> Iterator[Markup]:
    """The names of rows and columns, every n-th where there is no room for all."""
    every = max(int(-(-_PER_LABEL // height)), 1)
    for place in range(0, len(rows), every):
        y = 20 + (place + 0.5) * height + 4
        yield tag("text", rows[place], x=left - 5, y=y, text_anchor="end")
    longest = max((len(name) for name in columns), default=0) * _LETTER + 6
    every = max(int(-(-longest // width)), 1)
    for place in range(0, len(columns), every):
        x = left + (place + 0.5) * width
        yield tag("text", columns[place], x=x, y=13, text_anchor="middle")
