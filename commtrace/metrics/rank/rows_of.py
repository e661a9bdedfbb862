"""A table's rows of one rank or device, without looking at those of all others each time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import Int64, integers
from commtrace.measures import measure

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = [
    "places_of_rank",
    "rows_by_device",
    "rows_of_device",
    "rows_of_others",
    "rows_of_rank",
]

_NONE = np.empty(0, dtype=np.int64)


def rows_of_rank(run: Measures, table: str, rank: int) -> pd.DataFrame:
    """The rows of a rank, in the table's order."""
    frame: pd.DataFrame = getattr(run, table)
    return frame.iloc[places_of_rank(run, table, rank)]


def places_of_rank(run: Measures, table: str, rank: int) -> slice | Int64:
    """Where these are."""
    return _by_rank(run, table).get(rank, _NONE)


def rows_of_device(run: Measures, table: str, rank: int, device: str) -> pd.DataFrame:
    """The rows of a rank's device, in the table's order."""
    frame: pd.DataFrame = getattr(run, table)
    return frame.iloc[rows_by_device(run, table).get(rank, {}).get(device, _NONE)]


def rows_of_others(run: Measures, table: str, rank: int, device: str) -> pd.DataFrame:
    """The rows of all devices of a rank but one."""
    frame: pd.DataFrame = getattr(run, table)
    its = rows_by_device(run, table).get(rank, {})
    return frame.iloc[np.concatenate((_NONE, *(its[other] for other in its if other != device)))]


@measure
def _by_rank(run: Measures, table: str) -> Mapping[int, slice | Int64]:
    """Ranks that are one behind the other, as files are read, need no list of their rows."""
    rank = integers(getattr(run, table)["rank"])
    first = np.flatnonzero(np.append(True, rank[1:] != rank[:-1])[: rank.size])
    ranks = rank[first].tolist()
    if len(set(ranks)) < len(ranks):
        return dict(getattr(run, table).groupby("rank", sort=False).indices)
    spans = pairwise(np.append(first, rank.size).tolist())
    return {rank: slice(*span) for rank, span in zip(ranks, spans, strict=True)}


@measure
def rows_by_device(run: Measures, table: str) -> Mapping[int, Mapping[str, Int64]]:
    """The rows of each device of each rank."""
    frame: pd.DataFrame = getattr(run, table)
    places: Any = frame.groupby(["rank", "device"], observed=True, sort=False).indices
    found: dict[int, dict[str, Int64]] = {}
    for (rank, device), rows in places.items():
        found.setdefault(int(rank), {})[str(device)] = rows
    return found
