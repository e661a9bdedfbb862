"""The timeline as a picture, for who reads without scripts or on paper: one step of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from commtrace.intervals import union
from commtrace.reports.web.axes import time_ticks
from commtrace.reports.web.markup import Markup, number, tag
from commtrace.units import clean

if TYPE_CHECKING:
    from commtrace.arrays import Int64
    from commtrace.reports.web.thinned import Events

__all__ = ["timeline_picture"]

_LEFT, _WIDTH, _LANE, _TOP = 170, 1000, 16, 24
_KINDS = ("compute", "copy", "communication")


def timeline_picture(events: Events, start_ns: int, end_ns: int, most: int) -> Markup:
    """What ran from start to end on the first lanes, of what is shorter than a pixel a pixel."""
    its = events.taken((events.end > start_ns) & (events.start < end_ns))
    lanes = np.unique(its.lane)[:most].tolist()
    height = _TOP + _LANE * len(lanes) + 4
    parts: list[Markup] = []
    for x, text in time_ticks(end_ns - start_ns, _WIDTH):
        at = _LEFT + x
        parts.append(tag("line", class_="grid", x1=at, x2=at, y1=_TOP - 4, y2=height))
        parts.append(tag("text", text, x=at, y=_TOP - 8, text_anchor="middle"))
    for row, lane in enumerate(lanes):
        y = _TOP + row * _LANE
        parts.append(tag("text", _named(*its.lanes[lane]), x=0, y=y + 11))
        mine = its.taken(its.lane == lane)
        parts.extend(_drawn(mine, start_ns, end_ns, y))
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_LEFT + _WIDTH + 30} {height}",
        width=_LEFT + _WIDTH + 30,
        height=height,
        role="img",
        aria_label="timeline of one step",
    )


def _named(rank: int, device: str, stream: int) -> str:
    where = "thread" if device == "cpu" else "stream"
    return f"rank {rank} {clean(device, 10)} {where} {stream}"


def _drawn(its: Events, start_ns: int, end_ns: int, y: float) -> Iterator[Markup]:
    """A path for each kind, waiting apart from transfer."""
    scale = _WIDTH / (end_ns - start_ns)
    for kind in _KINDS:
        mine = its.taken(its.of_kind(kind))
        if kind != "communication":
            yield from _path(kind, mine.start, mine.end, start_ns, scale, y)
        else:
            waited = mine.start + np.minimum(mine.wait, mine.end - mine.start)
            yield from _path("transfer", waited, mine.end, start_ns, scale, y)
            waits = waited > mine.start
            yield from _path("wait", mine.start[waits], waited[waits], start_ns, scale, y)


def _path(
    kind: str, start: Int64, end: Int64, base: int, scale: float, y: float
) -> Iterator[Markup]:
    first = np.floor((start - base) * scale).clip(0, _WIDTH).astype(np.int64)
    last = np.ceil((end - base) * scale).clip(0, _WIDTH).astype(np.int64)
    left, right = union(first, np.maximum(last, first + 1))
    if left.size:
        boxes = (
            f"M{_LEFT + a} {number(y)}h{b - a}v12h{a - b}z"
            for a, b in zip(left.tolist(), right.tolist(), strict=True)
        )
        yield tag("path", class_=kind, d="".join(boxes))
