"""Measures that need one rank only, found by the process that has just read it.

Whoever asks for one of a run finds it known there. Of ranks that were not read by another process,
or that have several files, they are computed when they are asked for, as all others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from commtrace.causal.rank.rank_graph import graph_columns
from commtrace.engine import Lost, attempt
from commtrace.measures import Measures, name_of
from commtrace.metrics.rank.activity import rank_activity
from commtrace.metrics.rank.devices import rank_devices, rank_steps
from commtrace.metrics.rank.kernels_beside import kernels_beside
from commtrace.metrics.rank.rank_threads import rank_threads
from commtrace.metrics.rank.rows_of import ranks_of
from commtrace.metrics.rank.spans import rank_spans
from commtrace.packed import Packed, PackedColumns
from commtrace.trace_tables import TABLES

if TYPE_CHECKING:
    from commtrace.table import Columns, Rows, Table
    from commtrace.trace import RankTrace

__all__ = ["GPU_MEASURES", "RANK_MEASURES", "measured"]

_MANY = 50_000  # rows: some 5 MB

RANK_MEASURES: tuple[Callable[[Measures, int], Columns], ...] = (
    rank_activity,
    rank_devices,
    rank_steps,
    rank_spans,
)
"""Functions of a run and one of its ranks, which look at nothing of others."""
GPU_MEASURES: tuple[Callable[[Measures, int], Columns], ...] = (
    kernels_beside,
    rank_threads,
    graph_columns,
)
"""The same of ranks that ran kernels."""


def measured(part: RankTrace) -> dict[str, Columns]:
    """What they say of a rank, by their names; one that breaks is left to who asks for it."""
    tables = {table.name: _rows(table, part.columns[table.name]) for table in TABLES}
    run = Measures(**tables, notes=part.notes)  # type: ignore[arg-type]
    found = {}
    on_gpu = GPU_MEASURES if ranks_of(run, "kernels") else ()
    for function in (*RANK_MEASURES, *on_gpu):
        columns = attempt(partial(function, run), part.rank)
        if not isinstance(columns, Lost):
            found[name_of(function)] = columns
    return found


def _rows(table: Table, columns: Columns) -> Rows | Packed:
    """A table, packed only where it is large: to unpack it for each measure takes a while."""
    many = isinstance(columns, PackedColumns) and len(columns.packed["rank"]) > _MANY
    return Packed(table, [columns]) if many else table.rows(columns)
