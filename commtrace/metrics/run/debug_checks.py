"""What PyTorch sends to check each collective before it runs, at its debug level DETAIL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, codes
from commtrace.comms import POINT_TO_POINT
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["debug_checks", "least_ns"]

_GLOO = "gloo:"
_BYTES = 4  # of a number by which ranks say that they are there
_MOST = 0.5  # of the collectives


def debug_checks(run: Measures) -> Rows:
    """Rows of ``collectives`` that no call of the program made; none where it is no debug level.

    Before each collective ranks send one another a number, and then gather its fingerprint: their
    size, and the numbers themselves. So there are sends of a number that nobody called, as many
    as most of the collectives that somebody did.
    """
    rows = run.rows("collectives")
    op, mine = rows.coded("op"), rows.coded("call").where(lambda name: name.startswith(_GLOO))
    barriers = mine & op.where(POINT_TO_POINT.__contains__) & (rows.ints("size_bytes") == _BYTES)
    called = rows.coded("call").known & ~mine & ~op.where(POINT_TO_POINT.__contains__)
    if not barriers.any() or barriers.sum() < _MOST * called.sum():
        return run.rows("collectives", slice(0, 0))
    gathers = mine & op.being("all_gather") & rows.coded("dtype").being("int64")
    return run.rows("collectives", np.flatnonzero(barriers | gathers))


def least_ns(checks: Rows) -> int:
    """How long they took on the rank that waited least in them; one follows the other."""
    rank: Int64 = codes(checks.ints("rank"))
    return int(np.bincount(rank, checks.ints("duration_ns")).min()) if rank.size else 0
