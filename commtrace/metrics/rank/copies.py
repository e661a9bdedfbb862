"""What was copied from where to where, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.intervals import total, union
from commtrace.measures import measure
from commtrace.table import Column, Table

if TYPE_CHECKING:
    import pandas as pd

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
def copies(run: Measures) -> pd.DataFrame:
    """What each rank copied from where to where, as ``COPIES``."""
    real = run.copies[run.copies["kind"] != "Memset"]
    routes = real.groupby(_ROUTE, observed=True, dropna=False)
    rows = [
        {**dict(zip(_ROUTE, map(_text, route), strict=True)), "rank": route[0], **_measures(part)}
        for route, part in routes
    ]
    # Categories come in the order in which the trace first has them.
    rows.sort(key=lambda row: (row["rank"], *(str(row[name]) for name in _ROUTE)))
    return COPIES.from_rows(rows)


def _measures(part: pd.DataFrame) -> dict[str, Any]:
    size = part["size_bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    start, duration = part["start_ns"].to_numpy(), part["duration_ns"].to_numpy()
    rated = (duration > 0) & ~np.isnan(size)
    moved = None if np.isnan(size).any() else int(part["size_bytes"].sum())
    busy = total(union(start, start + duration))
    return {
        "count": len(part),
        "bytes": moved,
        "duration_ns_total": int(duration.sum()),
        "gb_s_p50": np.median(size[rated] / duration[rated]) if rated.any() else None,
        "gb_s_busy": moved / busy if moved is not None and busy else None,
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
