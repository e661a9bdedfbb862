"""The measures as tables, which the page's script sorts and filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from commtrace.causal.critical_path import CRITICAL_PATH
from commtrace.causal.steps import STEP_TIMES, path_of, step_times_by_rank
from commtrace.metrics.rank.copies import COPIES, copies
from commtrace.metrics.rank.devices import DEVICES, devices
from commtrace.metrics.rank.streams import STREAMS, streams
from commtrace.metrics.run.collectives import (
    COLLECTIVES_BY_DIMENSION,
    collectives_by_dimension,
)
from commtrace.metrics.run.ranges import RANGES, ranges
from commtrace.metrics.run.ranks import RANKS, ranks
from commtrace.reports.web.markup import Markup, tag
from commtrace.table import Column, Rows, Table
from commtrace.units import NOTHING, clean, counted, duration, rate, size

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.measures import Measures

__all__ = ["data_tables"]


def _path(run: Measures) -> Rows:
    path = path_of(run)
    return CRITICAL_PATH.rows() if path is None else path


_TABLES: tuple[tuple[str, Table, Callable[[Measures], Rows]], ...] = (
    ("Collectives", COLLECTIVES_BY_DIMENSION, collectives_by_dimension),
    ("Labelled ranges", RANGES, ranges),
    ("Devices", DEVICES, devices),
    ("Ranks", RANKS, ranks),
    ("Steps of each rank", STEP_TIMES, step_times_by_rank),
    ("Copies", COPIES, copies),
    ("Streams and threads", STREAMS, streams),
    ("Critical path", CRITICAL_PATH, _path),
)
_UNITS: dict[str | None, Callable[[Any], str]] = {
    "ns": lambda value: duration(value) if value >= 0 else f"-{duration(-value)}",
    "bytes": size,
    "GB/s": rate,
    "percent": lambda value: f"{value:.1f} %",
}
_LETTERS = 80


def data_tables(analysis: Analysis, most: int) -> Markup:
    """A table of each measure that has rows, at most so many of each."""
    return tag("div", *_tables(analysis.measures, most))


def _tables(run: Measures, most: int) -> Iterator[Markup]:
    first: str | None = ""
    for title, described, measure in _TABLES:
        table = measure(run)
        if len(table):
            yield _table(title, described, table, most, first)
            first = None


def _table(title: str, described: Table, table: Rows, most: int, is_open: str | None) -> Markup:
    shown = table.take(slice(most)).dicts()
    columns = [c for c in described.columns if any(row[c.name] is not None for row in shown)]
    hidden = len(table) - len(shown)
    rest = f" The first {len(shown):,} of {len(table):,}; --format json has all." if hidden else ""
    return tag(
        "details",
        tag("summary", f"{title} ", tag("small", counted(len(table), "row"))),
        tag("p", f"One row is {described.row}.{rest}", class_="hint"),
        tag(
            "div",
            tag(
                "table",
                tag("thead", tag("tr", *map(_head, columns))),
                tag("tbody", *(_row(columns, row) for row in shown)),
            ),
            class_="scroll",
        ),
        open=is_open,
    )


def _head(column: Column) -> Markup:
    return tag("th", _heading(column), title=column.about, class_=_side(column), scope="col")


def _heading(column: Column) -> str:
    """The column's name without its unit, which the cells have; bandwidth keeps it."""
    name = column.name.removesuffix("_pct").replace("_gb_s", " GB/s")
    return name.replace("_ns", "").removesuffix("_bytes").replace("_", " ")


def _row(columns: list[Column], row: dict[str, Any]) -> Markup:
    return tag("tr", *(_cell(column, row[column.name]) for column in columns))


def _cell(column: Column, value: Any) -> Markup:
    """The value in words; its number beside it, where words would sort otherwise."""
    if value is None:
        return tag("td", NOTHING, class_=_side(column), data_v="")
    if column.name in ("start_ns", "end_ns"):
        return tag("td", str(value), class_="right")
    if column.unit in _UNITS:
        return tag("td", _UNITS[column.unit](value), class_="right", data_v=f"{value:.6g}")
    if isinstance(value, float):
        return tag("td", f"{value:.3g}", class_="right", data_v=f"{value:.6g}")
    if isinstance(value, bool) or not isinstance(value, int):
        return tag("td", clean(value, _LETTERS), class_=_side(column))
    return tag("td", f"{value:,}", class_="right", data_v=str(value))


def _side(column: Column) -> str | None:
    return "right" if column.dtype in ("int64", "Int64", "float64") else None
