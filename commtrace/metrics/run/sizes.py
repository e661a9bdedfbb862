"""Communication whose size is unknown, or small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, codes
from commtrace.diagnosis import Note

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["small_per_step", "unsized"]


def unsized(run: Measures) -> tuple[Note, ...]:
    """``sizes-unknown``: how much communication has a null size, and so a null bandwidth.

    A barrier has none.
    """
    table = run.rows("collectives")
    sized = ~table.coded("op").being("barrier")
    count = np.count_nonzero(sized & (table.ints("size_bytes") == NULL))
    whole = np.count_nonzero(sized)
    if not count:
        return ()
    message = (
        f"{count:,} of {whole:,} communication events have no size, so no bandwidth: "
        "PyTorch 2.4 and later record it for NCCL, record_shapes=True for the rest"
    )
    return (Note("sizes-unknown", message),)


def small_per_step(run: Measures, op: str, below_bytes: int) -> float:
    """How many operations of that name and fewer bytes, or of unknown size, a rank has in a step.

    The mean; 0 where no steps are labelled.
    """
    table = run.rows("collectives")
    rank, step = table.ints("rank"), table.ints("step")
    mine = table.coded("op").being(op) & (table.ints("size_bytes") < below_bytes) & (step != NULL)
    steps = codes(rank[mine], step[mine]).max(initial=-1) + 1
    return np.count_nonzero(mine) / max(int(steps), 1)
