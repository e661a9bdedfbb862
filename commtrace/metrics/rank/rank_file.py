"""The file of a rank, for who reads it once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["file_of"]


def file_of(run: Measures, rank: int) -> Path | None:
    """None where it is one of several, the cycles of a profiler's schedule, or is not known."""
    ranks = run.rows("ranks")
    file = ranks.coded("file").at(int(np.flatnonzero(ranks.ints("rank") == rank)[0]))
    return None if run.pauses.get(rank) or file is None else Path(str(file))
