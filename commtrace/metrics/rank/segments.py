"""What a rank did between two of its operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from commtrace.intervals import covered
from commtrace.metrics.rank.activity import device_work
from commtrace.table import Column, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SEGMENTS", "segments"]

SEGMENTS = Table(
    "segments",
    "what a rank did from the start of one operation of a communicator to that of its next; none "
    "before the first, nor where the device's compute is unknown",
    (
        Column("operation", "int64", "The operation that ends it."),
        Column("rank", "int64", "The rank."),
        Column("launch_ns", "float64", "When that was launched, on the run's clock.", "ns"),
        Column("compute_ns", "int64", "While the device computed.", "ns"),
        Column("copy_ns", "int64", "While it copied.", "ns"),
        Column("idle_ns", "int64", "While nothing ran on it.", "ns"),
    ),
)


def segments(run: Measures, rows: pd.DataFrame) -> pd.DataFrame:
    """The segments between these rows of ``joined_rows``: SEGMENTS."""
    group = rows.groupby(["rank", "communicator"], observed=True, dropna=False)
    since = group["start_ns"].shift()
    known = rows[since.notna()].assign(since=since.dropna().astype("int64"))
    parts = [known[["operation", "rank", "launch_ns"]].iloc[:0]]
    places = known.groupby(["rank", "device"], observed=True, sort=False).indices
    for (rank, device, _), did in device_work(run).items():
        at = places.get((rank, device))
        if did.compute is None or at is None:
            continue
        mine = known.iloc[at]
        window = mine["since"].to_numpy(), mine["start_ns"].to_numpy()
        parts.append(
            mine[["operation", "rank", "launch_ns"]].assign(
                compute_ns=covered(*window, did.compute),
                copy_ns=covered(*window, did.copy),
                idle_ns=(window[1] - window[0]) - covered(*window, did.busy),
            )
        )
    return pd.concat(parts) if len(parts) > 1 else SEGMENTS.frame()
