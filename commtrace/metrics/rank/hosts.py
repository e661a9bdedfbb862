"""On which host each rank is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.measures import measure

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["hosts"]


@measure
def hosts(run: Measures) -> pd.Series[str]:
    """The name of each rank's host by rank; null where unknown."""
    return run.ranks.drop_duplicates("rank").set_index("rank")["host"].astype(object)
