"""The rows of one rank, found once for all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.measures import measure

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["of_rank", "places_of_rank"]

_NOWHERE = np.empty(0, np.intp)


def of_rank(run: Measures, table: str, rank: int) -> pd.DataFrame:
    """The rows of a rank in a table of the run."""
    rows: pd.DataFrame = getattr(run, table)
    return rows.iloc[places_of_rank(run, table, rank)]


def places_of_rank(run: Measures, table: str, rank: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Where they are."""
    return _places(run, table).get(rank, _NOWHERE)


@measure
def _places(run: Measures, table: str) -> dict[int, np.ndarray[Any, np.dtype[np.intp]]]:
    groups: Any = getattr(run, table).groupby("rank", sort=False)
    return dict(groups.indices)
