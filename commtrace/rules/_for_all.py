"""Roots that collect, and send all what they made of it: each rank could have made its part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Int64, codes, distinct
from commtrace.comms import TO_ROOT
from commtrace.metrics.run.joined_rows import joined_rows
from commtrace.quantiles import median
from commtrace.units import size

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["made_for_all"]

_MOSTLY = 0.8  # of what a root collects
_LITTLE = 1 / 16  # of what is collected: all it is needed for


def made_for_all(run: Measures, root: int, operations: Int64) -> str:
    """What to do where a root answers what it collects with a broadcast, in words, else "".

    One of the ``operations`` is like one of both: of its communicator, kind and size.
    """
    table = run.rows("collectives")
    there = table.coded("op").where(lambda op: op in TO_ROOT or op == "broadcast")
    rows = joined_rows(run, there & (table.ints("rank") == root))
    rows = rows.take(rows.ints("root") == root)
    collects = rows.coded("op").where(TO_ROOT.__contains__)
    group = codes(rows.coded("communicator"))
    kind = codes(group, rows.coded("op"), rows.ints("size_bytes"))
    asked = np.isin(kind, kind[np.isin(rows.ints("operation"), operations)])
    for one in distinct(group[asked]).tolist():
        mine = np.flatnonzero(group == one)
        first, then = mine[:-1], mine[1:]
        answered = collects[first] & ~collects[then]
        among = answered & (asked[first] | asked[then])
        if among.any() and answered.sum() >= _MOSTLY * collects[mine].sum():
            return _instead(rows.take(first[answered]), rows.take(then[answered]), root)
    return ""


def _instead(collected: Rows, answers: Rows, root: int) -> str:
    if collected.coded("op").being("reduce").all():
        return (
            f"where rank {root} only computes what it sends back, all_reduce, and let every rank "
            "compute that"
        )
    gathered, sent = (rows.ints("size_bytes") for rows in (collected, answers))
    known = (gathered != NULL).all() and (sent != NULL).all()
    if not known or sent.sum() > _LITTLE * gathered.sum():
        return ""
    return (
        f"of {size(int(median(gathered)))} that it gathers rank {root} makes "
        f"{size(int(median(sent)))} for all: let every rank reduce its own part, and "
        "all_reduce that"
    )
