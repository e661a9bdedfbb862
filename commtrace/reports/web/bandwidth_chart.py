"""Bandwidth against size: every operation, the fitted lines, the link's peak, the outliers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import distinct, rows_of_each
from commtrace.comms import OPERATIONS
from commtrace.diagnosis import CannotLook
from commtrace.metrics.run.bandwidth import KIND, fitted, served, typical_ns
from commtrace.quantiles import median
from commtrace.reports.web.axes import log_ticks
from commtrace.reports.web.markup import Markup, number, tag
from commtrace.reports.web.thinned import numbered_values
from commtrace.topology import uniform_link
from commtrace.units import clean, counted, duration, mb, ms, rate

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.arrays import Bool, Float64
    from commtrace.expect import Link
    from commtrace.table import Rows

__all__ = ["bandwidth_chart"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 380, 64, 44, 12
_OUTLIER = 2.0  # times the median of its kind
_MOST_OUTLIERS = 60
_MOST_MEDIANS = 400
_FITS = 8
_CURVE = 25
_GRID_PX = 3
_FEW_SIZES, _APART_PX = 3, 12
_LETTER = 7  # pixels


@dataclass(frozen=True)
class _Plane:
    """Where sizes and bandwidths are in the picture."""

    least: tuple[float, float]
    most: tuple[float, float]

    def x(self, size: Any) -> Any:
        """From a size in bytes."""
        return _LEFT + (_WIDTH - _LEFT - 12) * _share(size, self.least[0], self.most[0])

    def y(self, gb_s: Any) -> Any:
        """From a bandwidth in GB/s."""
        height = _HEIGHT - _BOTTOM - _TOP
        return _TOP + height * (1 - _share(gb_s, self.least[1], self.most[1]))


def bandwidth_chart(analysis: Analysis) -> Markup | None:
    """A chart of all operations with a size and a bandwidth; None without one."""
    run = analysis.measures
    try:
        known = served(run, cold=True)
    except CannotLook:
        return None
    known = known.take(known.floats("busbw_gb_s") > 0)
    if not len(known):
        return None
    times = known.ints("transfer_ns") / typical_ns(known)
    late = times > _OUTLIER
    link = uniform_link(run)
    plane = _plane(known, link)
    fits = list(_fits(known, ~late, plane))
    drawing = tag(
        "svg",
        *_axes(plane),
        *_peak(plane, link),
        *_points(known, plane),
        *(line for line, _ in fits),
        *_medians(known, plane),
        *_outliers(known.take(late), times[late], plane, _nudges(known)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        aria_label="bus bandwidth against size",
    )
    ops = _ops(known)
    return tag(
        "figure",
        tag("div", drawing, class_="scroll chart"),
        tag(
            "div",
            tag("ul", *map(_entry, ops), class_="legend"),
            tag("ul", *(tag("li", words) for _, words in fits), class_="hints") if fits else None,
            tag("p", _hint(int(late.sum()), link, bool(fits)), class_="hint"),
        ),
        class_="beside",
    )


def _share(value: Any, low: float, high: float) -> Any:
    return (np.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))


def _ops(known: Rows) -> list[str]:
    return sorted(known.coded("op").occurring())


def _plane(known: Rows, link: Link | None) -> _Plane:
    size, speed = known.ints("size_bytes"), known.floats("busbw_gb_s")
    top = max(float(speed.max()), link.peak_gb_s if link else 0.0)
    around = 1.6 if size.min() < size.max() else 5
    return _Plane(
        (float(size.min()) / around, float(speed.min()) / 1.6),
        (float(size.max()) * around, top * 1.6),
    )


def _axes(plane: _Plane) -> Iterator[Markup]:
    floor, right = _HEIGHT - _BOTTOM, _WIDTH - 12
    for size in log_ticks(plane.least[0], plane.most[0]):
        x = plane.x(size)
        yield tag("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=floor)
        inside = min(x, _WIDTH - _LETTER * len(mb(size)) / 2)
        yield tag("text", mb(size), x=inside, y=floor + 16, text_anchor="middle")
    for speed in log_ticks(plane.least[1], plane.most[1]):
        y = plane.y(speed)
        yield tag("line", class_="grid", x1=_LEFT, x2=right, y1=y, y2=y)
        yield tag("text", f"{speed:g}", x=_LEFT - 6, y=y + 4, text_anchor="end")
    middle = (_LEFT + right) / 2
    yield tag("text", "size of the full array", x=middle, y=_HEIGHT - 6, text_anchor="middle")
    turned = f"rotate(-90 14 {number(floor / 2)})"
    yield tag(
        "text", "bus bandwidth, GB/s", x=14, y=floor / 2, transform=turned, text_anchor="middle"
    )


def _peak(plane: _Plane, link: Link | None) -> Iterator[Markup]:
    if link is None:
        return
    for speed, name in ((link.peak_gb_s, "peak"), (link.usual_gb_s, "usually reached")):
        y = plane.y(speed)
        if speed < plane.least[1]:
            continue
        yield tag("line", class_="peak", x1=_LEFT, x2=_WIDTH - 12, y1=y, y2=y)
        text = f"{link.name} {name} {rate(speed)} GB/s"
        yield tag("text", text, x=_WIDTH - 16, y=y - 4, text_anchor="end", class_="peak-text")


def _nudges(known: Rows) -> dict[str, float]:
    """By how much each operation stands aside where few sizes would hide them behind another."""
    ops = _ops(known)
    apart = _APART_PX if distinct(known.ints("size_bytes")).size <= _FEW_SIZES else 0
    return {op: apart * (place - (len(ops) - 1) / 2) for place, op in enumerate(ops)}


def _points(known: Rows, plane: _Plane) -> Iterator[Markup]:
    """A dot for each operation; those on the same three pixels are one."""
    x, y = plane.x(known.ints("size_bytes")), plane.y(known.floats("busbw_gb_s"))
    for op, aside in _nudges(known).items():
        mine = known.coded("op").being(op)
        places = np.stack([x[mine] + aside, y[mine]], axis=1)
        places = np.unique(np.rint(places / _GRID_PX) * _GRID_PX, axis=0).tolist()
        dots = "".join(f"M{number(a - 1.5)} {number(b - 1.5)}h3v3h-3z" for a, b in places)
        yield tag("path", class_=f"dots {_class(op)}", d=dots)


def _medians(known: Rows, plane: _Plane) -> Iterator[Markup]:
    kind, kinds = numbered_values(known, *KIND)
    took, speed, aside = known.ints("transfer_ns"), known.floats("busbw_gb_s"), _nudges(known)
    each = rows_of_each(kind, np.arange(len(kinds)))[:_MOST_MEDIANS]
    for (_, op, dtype, size), at in zip(kinds, each, strict=False):
        middle = median(speed[at])
        said = (
            f"{op} {clean(dtype, 16)}, {mb(size)}: median "
            f"{rate(middle)} GB/s, {duration(round(median(took[at])))}, "
            f"of {counted(at.size, 'operation')}"
        )
        yield _mark(op, plane.x(float(size)) + aside[op], plane.y(middle), said)


def _outliers(
    late: Rows, times: Float64, plane: _Plane, aside: Mapping[str, float]
) -> Iterator[Markup]:
    """Those that took most ``times`` the median of their kind."""
    worst = np.argsort(-times, kind="stable")[:_MOST_OUTLIERS]
    for row, ratio in zip(late.take(worst).dicts(), times[worst].tolist(), strict=True):
        which = "" if row["seq"] is None else f", number {row['seq']} of its group"
        said = (
            f"outlier: {row['op']}{which}: {duration(row['transfer_ns'])}, "
            f"{ratio:.1f}x the median of its kind"
        )
        x = plane.x(float(row["size_bytes"])) + aside[str(row["op"])]
        y = plane.y(row["busbw_gb_s"])
        yield tag("circle", tag("title", said), class_="outlier", cx=x, cy=y, r=6)


def _fits(known: Rows, usual: Bool, plane: _Plane) -> Iterator[tuple[Markup, str]]:
    """The fitted line of each kind whose sizes vary enough, with its model in words."""
    kind, kinds = numbered_values(known, *KIND[:-1])
    groups = sorted(rows_of_each(kind, np.arange(len(kinds))), key=len, reverse=True)
    drawn = 0
    for at in groups:
        its = known.take(at)
        model = fitted(its.take(usual[at])) if drawn < _FITS else None
        if model is None:
            continue
        drawn += 1
        sizes = its.ints("size_bytes")
        size = np.geomspace(float(sizes.min()), float(sizes.max()), _CURVE)
        factor = float(its.floats("factor")[0])
        speed: Float64 = size * factor / (model.latency_ns + size / model.gb_s)
        places = zip(plane.x(size).tolist(), plane.y(speed).tolist(), strict=True)
        op = str(its.coded("op").at(0))
        line = tag(
            "polyline",
            class_=f"fit {_class(op)}",
            points=" ".join(f"{number(x)},{number(y)}" for x, y in places),
        )
        words = (
            f"{op} {clean(its.coded('dtype').at(0), 16)}: time = {ms(model.latency_ns)} + size / "
            f"{rate(model.gb_s)} GB/s, fitted to {counted(model.points, 'operation')}"
        )
        yield line, words


def _hint(late: int, link: Link | None, has_fits: bool) -> str:
    said = ["Small: one operation; large: the median of its size."]
    said += [f"Ringed: {counted(late, 'operation')} more than twice the median."] * bool(late)
    said += ["No line: too few sizes, or times that do not follow them."] * (not has_fits)
    said += ["The link's peak is unknown: no topology was recorded."] * (link is None)
    return " ".join(said)


_SHAPES = ("circle", "square", "diamond", "triangle")


def _mark(op: str, x: float, y: float, said: str) -> Markup:
    """A mark whose shape, too, says the operation."""
    title = tag("title", said)
    place = OPERATIONS.index(op) if op in OPERATIONS else 0
    shape = _SHAPES[place % len(_SHAPES)]
    if shape == "circle":
        return tag("circle", title, class_=f"median {_class(op)}", cx=x, cy=y, r=5)
    d = {
        "square": "m-4.5 -4.5h9v9h-9z",
        "diamond": "m0 -6l6 6l-6 6l-6 -6z",
        "triangle": "m0 -6l5.5 10h-11z",
    }[shape]
    return tag("path", title, class_=f"median {_class(op)}", d=f"M{number(x)} {number(y)}{d}")


def _entry(op: str) -> Markup:
    mark = tag("svg", _mark(op, 7, 7, op), width=14, height=14)
    return tag("li", mark, clean(op, 24))


def _class(op: str) -> str:
    return f"op-{op}" if op in OPERATIONS else "op-other"
