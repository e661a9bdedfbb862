"""One step as a picture: for who reads without scripts or on paper, and beside another run's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import distinct
from commtrace.intervals import shaded, union
from commtrace.reports.web.axes import time_ticks
from commtrace.reports.web.markup import Markup, number, tag
from commtrace.units import clean

if TYPE_CHECKING:
    from commtrace.arrays import Int64
    from commtrace.reports.web.thinned import Events

__all__ = ["kinds_of", "ranks_picture", "timeline_picture"]

_LEFT, _WIDTH, _LANE, _TOP = 170, 1000, 16, 24
_BOX = 12  # of a lane's height
_HALF = 11  # of a rank's
_NAMED = 110  # a rank's name is short
_LETTER = 6.5
_KINDS = ("compute", "copy", "communication")


def kinds_of(events: Events) -> list[str]:
    """What there is to be seen, for the legend."""
    communicates = bool(events.of_kind("communication").any())
    there = {
        "compute": bool(events.of_kind("compute").any()),
        "transfer": communicates,
        "wait": communicates and bool(events.wait.any()),
        "copy": bool(events.of_kind("copy").any()),
    }
    return [kind for kind, is_there in there.items() if is_there]


def timeline_picture(events: Events, start_ns: int, end_ns: int, most: int) -> Markup:
    """What ran from start to end on the first lanes; a pixel that it fills in part is lighter."""
    its = _between(events, start_ns, end_ns)
    lanes = distinct(its.lane)[:most].tolist()
    height = _TOP + _LANE * len(lanes) + 4
    parts = list(_axis(end_ns - start_ns, height))
    scale = _WIDTH / (end_ns - start_ns)
    for row, lane in enumerate(lanes):
        y = _TOP + row * _LANE
        parts.append(tag("text", _named(*its.lanes[lane]), x=0, y=y + 11))
        mine = its.taken(its.lane == lane)
        for kind in _KINDS:
            parts.extend(_drawn(kind, mine, start_ns, scale, y, _BOX))
    return _svg(parts, height, "timeline of one step")


def ranks_picture(
    events: Events, ranks: Sequence[int], start_ns: int, end_ns: int, whole_ns: int, label: str
) -> Markup:
    """What these ranks did from start to end, on a scale that is ``whole_ns`` wide.

    A row for each: above, computing and copying; below, communication; behind both, idle.
    """
    its = _between(events, start_ns, end_ns)
    rank = np.asarray([lane[0] for lane in its.lanes], dtype=np.int64)[its.lane]
    scale = _WIDTH / whole_ns
    row_height = 2 * _HALF + 4
    height = _TOP + row_height * len(ranks) + 4
    parts = list(_axis(whole_ns, height))
    width = (end_ns - start_ns) * scale
    for row, shown in enumerate(ranks):
        y = _TOP + row * row_height
        parts.append(tag("text", f"rank {shown}", x=_NAMED, y=y + 15))
        parts.append(tag("rect", class_="idle", x=_LEFT, y=y, width=width, height=2 * _HALF))
        mine = its.taken(rank == shown)
        parts.extend(_drawn("compute", mine, start_ns, scale, y, _HALF))
        parts.extend(_drawn("copy", mine, start_ns, scale, y, _HALF))
        parts.extend(_drawn("communication", mine, start_ns, scale, y + _HALF, _HALF))
        parts.extend(_operations(mine, start_ns, scale, y + _HALF))
    at = _LEFT + width
    parts.append(tag("line", class_="mark", x1=at, x2=at, y1=_TOP - 4, y2=height))
    return _svg(parts, height, label, _NAMED)


def _between(events: Events, start_ns: int, end_ns: int) -> Events:
    """What there is from start to end, cut off at both."""
    its = events.taken((events.end > start_ns) & (events.start < end_ns))
    start, end = its.start.clip(start_ns), its.end.clip(max=end_ns)
    return replace(its, start=start, end=end, wait=(its.waited - start).clip(0))


def _axis(span_ns: int, height: float) -> Iterator[Markup]:
    for x, text in time_ticks(span_ns, _WIDTH):
        at = _LEFT + x
        yield tag("line", class_="grid", x1=at, x2=at, y1=_TOP - 4, y2=height)
        yield tag("text", text, x=at, y=_TOP - 8, text_anchor="middle")


def _svg(parts: Iterable[Markup], height: float, label: str, left: int = 0) -> Markup:
    width = _LEFT + _WIDTH + 30 - left
    return tag(
        "svg",
        *parts,
        viewBox=f"{left} 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def _operations(its: Events, start_ns: int, scale: float, y: float) -> Iterator[Markup]:
    """The names of operations whose transfers are wide enough."""
    shared = its.taken(its.of_kind("communication"))
    for since, until, label in zip(
        shared.waited.tolist(), shared.end.tolist(), shared.label.tolist(), strict=True
    ):
        name = clean(its.labels[label][1], 20)
        if (until - since) * scale > _LETTER * (len(name) + 2):
            x = _LEFT + (since - start_ns) * scale + _LETTER
            yield tag("text", name, class_="on-dark", x=x, y=y + _HALF - 3)


def _named(rank: int, device: str, stream: int) -> str:
    where = "thread" if device == "cpu" else "stream"
    return f"rank {rank} {clean(device, 10)} {where} {stream}"


def _drawn(
    kind: str, events: Events, base: int, scale: float, y: float, height: int
) -> Iterator[Markup]:
    """A path for what is of a kind, waiting apart from transfer."""
    its = events.taken(events.of_kind(kind))
    if kind != "communication":
        yield from _path(kind, its.start, its.end, base, scale, y, height)
        return
    waited = its.waited
    yield from _path("transfer", waited, its.end, base, scale, y, height)
    waits = waited > its.start
    yield from _path("wait", its.start[waits], waited[waits], base, scale, y, height)


def _path(
    kind: str, start: Int64, end: Int64, base: int, scale: float, y: float, height: int
) -> Iterator[Markup]:
    ran = union(start, np.maximum(end, start + 1))
    left, right, opacity = shaded(ran, base, base + round(_WIDTH / scale), _WIDTH)
    for one in np.unique(opacity).tolist():
        boxes = (
            f"M{_LEFT + a} {number(y)}h{b - a}v{height}h{a - b}z"
            for a, b in zip(*(its[opacity == one].tolist() for its in (left, right)), strict=True)
        )
        part = None if one == 1 else number(one)
        yield tag("path", class_=kind, d="".join(boxes), fill_opacity=part)
