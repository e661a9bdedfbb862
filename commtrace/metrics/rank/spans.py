"""From when to when each rank did anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, first_rows
from commtrace.measures import rank_measure
from commtrace.metrics.rank.rows_of import rows_of_ranks
from commtrace.table import Columns, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["rank_spans"]

_NEVER = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@rank_measure
def rank_spans(run: Measures, *ranks: int) -> Columns:
    """When the first and the last event of some ranks began and ended.

    A row is a ``rank``: ``begin_ns`` and ``end_ns`` are of all events, ``begin_in_steps_ns`` and
    ``end_in_steps_ns`` of what is in its steps. Where there is nothing it ends before it begins.
    ``behind_ns`` is when its devices were done with what hosts had launched before the first step,
    as these run ahead, and the stream of most kernels came to what is in steps, though others copy
    for these before: the steps' time is what comes then.
    """
    steps, ops, *launched = (
        rows_of_ranks(run, table, ranks)
        for table in ("steps", "ops", "kernels", "copies", "collectives")
    )
    own = ~steps.coded("label").known
    every: list[tuple[Rows, Bool | slice]] = [
        (steps, own),
        *((its, slice(None)) for its in (ops, *launched)),
    ]
    in_steps: list[tuple[Rows, Bool | slice]] = [
        (steps, own),
        *((its, its.ints("step") != NULL) for its in launched),
    ]
    begins, ends = _around(every, ranks)
    begins_in_steps, ends_in_steps = _around(in_steps, ranks)
    first = _first_on_main_stream(launched[0], ranks)
    first = np.where(first == _NEVER[0], _around(in_steps[1:], ranks)[0], first)
    _, behind = _around([(its, _before(its, first, ranks)) for its in launched], ranks)
    return {
        "rank": np.asarray(ranks),
        "begin_ns": begins,
        "end_ns": ends,
        "begin_in_steps_ns": begins_in_steps,
        "end_in_steps_ns": ends_in_steps,
        "behind_ns": np.minimum(behind, first),
    }


def _first_on_main_stream(kernels: Rows, ranks: tuple[int, ...]) -> Int64:
    """When each rank's stream of most kernels in steps ran the first of these."""
    kernels = kernels.take(kernels.ints("step") != NULL)
    rank = kernels.ints("rank")
    stream = codes(rank, kernels.coded("device"), kernels.ints("stream"))
    row = first_rows(stream)
    count = np.bincount(stream, minlength=row.size)
    main = row[np.lexsort((count, rank[row]))]
    main = stream[main[np.append(np.diff(rank[main]) != 0, True)[: main.size]]]
    return _around([(kernels, np.isin(stream, main))], ranks)[0]


def _before(table: Rows, first_ns: Int64, ranks: tuple[int, ...]) -> Bool:
    """What is of no step and begins before a rank's devices do anything of its steps."""
    at = np.searchsorted(ranks, table.ints("rank"))
    before: Bool = (table.ints("step") == NULL) & (table.ints("start_ns") < first_ns[at])
    return before


def _around(parts: list[tuple[Rows, Bool | slice]], ranks: tuple[int, ...]) -> tuple[Int64, Int64]:
    begins, ends = (np.full(len(ranks), never) for never in _NEVER)
    for table, rows in parts:
        start_ns = table.ints("start_ns")[rows]
        at = np.searchsorted(ranks, table.ints("rank")[rows])
        np.minimum.at(begins, at, start_ns)
        np.maximum.at(ends, at, start_ns + table.ints("duration_ns")[rows])
    return begins, ends
