"""Stacked bars: a name, a bar as wide as there is room, a value; and the legend of kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commtrace.reports.web.markup import Markup, tag

__all__ = ["NAMES", "Bar", "Part", "bars", "legend"]

NAMES = {
    "compute": "compute",
    "hidden": "communication under compute",
    "transfer": "transfer",
    "wait": "waiting for other ranks",
    "copy": "copy",
    "launch": "launch",
    "host": "host",
    "idle": "idle",
    "unknown": "communication, compute unknown",
}
"""What each kind is called; its key is the class that colours it."""

_WIDTH = 1000  # units: a bar is stretched
_MANY = 24  # bars stand closer


@dataclass(frozen=True)
class Part:
    """A piece of a bar: its kind, one of NAMES, its length and what it says when asked."""

    kind: str
    length: float
    tip: str


@dataclass(frozen=True)
class Bar:
    """A bar: its name, its parts from the left, its value in words; ``mark`` is where a tick is."""

    name: str
    parts: Sequence[Part]
    value: str
    mark: float | None = None


def bars(rows: Iterable[Bar], whole: float, label: str) -> Markup:
    """Bars on one scale, which ends at ``whole``."""
    scale = _WIDTH / whole if whole > 0 else 0
    drawn = [_bar(row, scale) for row in rows]
    classes = "bars dense" if len(drawn) > _MANY else "bars"
    return tag("div", *drawn, class_=classes, role="group", aria_label=label)


def legend(kinds: Iterable[str]) -> Markup:
    """The colours of these kinds, in words."""
    return tag("ul", *(_entry(kind) for kind in kinds), class_="legend")


def _entry(kind: str) -> Markup:
    square = tag("svg", tag("rect", class_=kind, width=12, height=12), width=12, height=12)
    return tag("li", square, NAMES[kind])


def _bar(row: Bar, scale: float) -> Markup:
    pieces, left = [], 0.0
    for part in row.parts:
        width = part.length * scale
        if width > 0:
            title = tag("title", part.tip)
            pieces.append(tag("rect", title, class_=part.kind, x=left, width=width, height=10))
        left += width
    if row.mark is not None:
        at = row.mark * scale
        pieces.append(tag("line", class_="mark", x1=at, x2=at, y1=-1, y2=11))
    drawn = (
        None
        if not row.parts
        else tag(
            "svg",
            *pieces,
            viewBox=f"0 0 {_WIDTH} 10",
            preserveAspectRatio="none",
            role="img",
            aria_label=f"{row.name}: {'; '.join(part.tip for part in row.parts if part.length)}",
        )
    )
    name, value = tag("span", row.name, class_="name"), tag("span", row.value, class_="value")
    return tag("div", name, drawn, value, class_="bar")
