"""What was copied from where to where, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, Int64, codes, first_rows, rows_of_each
from commtrace.intervals import total, union
from commtrace.measures import measure
from commtrace.quantiles import median
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["COPIES", "copies"]

_ROUTE = ["rank", "kind", "source", "destination", "memory"]
COPIES = Table(
    "copies",
    "all copies of one rank from one place to another; memory fills are not among them",
    (
        Column("rank", "int64", "The rank."),
        Column(
            "kind",
            "category",
            "`HtoD`, `DtoH`, `DtoD`, `PtoP` (between GPUs), `HtoH`; null if unknown.",
        ),
        Column("source", "category", "`host` or a device; null if unknown."),
        Column("destination", "category", "`host` or a device; null if unknown."),
        Column("memory", "category", "The host's side: `pageable`, `pinned`; null without one."),
        Column("count", "int64", "How many.", "copies"),
        Column("bytes", "Int64", "Their sizes' sum; null if any is unknown.", "bytes"),
        Column("duration_ns_total", "int64", "Their durations' sum.", "ns"),
        Column("gb_s_p50", "float64", "Median of bytes / duration over the copies.", "GB/s"),
        Column("gb_s_busy", "float64", "All bytes / the time in which any of them ran.", "GB/s"),
    ),
)


@measure
def copies(run: Measures) -> Rows:
    """What each rank copied from where to where, as ``COPIES``."""
    real = np.flatnonzero(~run.rows("copies").coded("kind").being("Memset"))
    its = run.rows("copies", real)
    size, start, duration = map(its.ints, ("size_bytes", "start_ns", "duration_ns"))
    route = codes(*(its.columns[name] for name in _ROUTE))
    first = first_rows(route)
    routes = run.rows("copies", real[first]).dicts()
    of_routes = rows_of_each(route, np.arange(first.size))
    rows = [
        {**{name: one[name] for name in _ROUTE}, **_measures(size[at], start[at], duration[at])}
        for one, at in zip(routes, of_routes, strict=False)
    ]
    # Routes come in the order in which the trace first has them.
    rows.sort(key=lambda row: (row["rank"], *(str(row[name]) for name in _ROUTE)))
    return COPIES.of_dicts(rows)


def _measures(size: Int64, start: Int64, duration: Int64) -> dict[str, Any]:
    rated = (duration > 0) & (size != NULL)
    moved = None if (size == NULL).any() else int(size.sum())
    busy = total(union(start, start + duration))
    return {
        "count": size.size,
        "bytes": moved,
        "duration_ns_total": int(duration.sum()),
        "gb_s_p50": median(size[rated] / duration[rated]) if rated.any() else None,
        "gb_s_busy": moved / busy if moved is not None and busy else None,
    }
