"""Which shapes kernels and operators work on: the inputs of the operator that launched them.

Analysing leaves that out, so that the files are read once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import Int64
from commtrace.engine import each, for_files
from commtrace.errors import TraceError
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.nesting import around
from commtrace.reader.json import operator_inputs

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Shapes", "shapes"]

_Texts = list[str | None]


@dataclass(frozen=True, eq=False)
class Shapes:
    """Of each row of ``kernels`` and ``ops`` the shapes of its inputs as JSON; None if unknown.

    ``unreadable`` says of the first file that could not be read again why.
    """

    kernels: np.ndarray[Any, np.dtype[np.object_]]
    ops: np.ndarray[Any, np.dtype[np.object_]]
    unreadable: str | None = None


class _Wanted(NamedTuple):
    """What to look up in one rank's file: when and on which thread work was launched, or ran."""

    file: Path
    table: str
    rows: Int64
    thread: Int64
    start_ns: Int64


@measure
def shapes(run: Measures) -> Shapes:
    """The shapes that a run's files hold; of ranks with several files none."""
    found = {name: np.full(len(run.rows(name)), None, object) for name in ("kernels", "ops")}
    wanted = list(_wanted(run, {name: its.size for name, its in found.items()}))
    files, unreadable = [its.file for its in wanted], None
    for (file, table, rows, *_), outcome in each(_looked_up, wanted, for_files(files)):
        if isinstance(outcome, list):
            found[table][rows] = outcome
        elif unreadable is None:
            failed = f"{file}: the process that read it again failed"
            unreadable = outcome if isinstance(outcome, str) else failed
    return Shapes(**found, unreadable=unreadable)


def _wanted(run: Measures, size: Mapping[str, int]) -> Iterator[_Wanted]:
    """What is asked of each file; tables have so many rows."""
    with_kernels = ranks_of(run, "kernels")
    for rank in run.rows("ranks").ints("rank").tolist():
        if (file := file_of(run, rank)) is None:
            continue
        name, when = ("kernels", "launch_ns") if rank in with_kernels else ("ops", "start_ns")
        rows = np.arange(size[name])[places_of_rank(run, name, rank)]
        rows = rows[run.rows(name, rows).coded("kind").being("compute")]
        its = run.rows(name, rows)
        yield _Wanted(file, name, rows, its.ints("thread"), its.ints(when))


def _looked_up(wanted: _Wanted) -> _Texts | str:
    try:
        operators = operator_inputs(wanted.file)
    except TraceError as error:
        return str(error)
    find = around if wanted.table == "kernels" else _beginning
    spans = operators.thread, operators.start_ns, operators.duration_ns
    names, codes = operators.shapes.names, operators.shapes.codes
    rows = find(spans, wanted.thread, wanted.start_ns).tolist()
    return [None if row < 0 else names[codes[row]] for row in rows]


def _beginning(spans: tuple[Int64, Int64, Int64], thread: Int64, time_ns: Int64) -> Int64:
    """The outermost operator that begins at each time on a thread; -1 for none."""
    threads, starts, lasting = spans
    order = np.lexsort((lasting, starts, threads))
    begins = zip(threads[order].tolist(), starts[order].tolist(), strict=True)
    row = dict(zip(begins, order.tolist(), strict=True))
    its = zip(thread.tolist(), time_ns.tolist(), strict=True)
    return np.asarray([row.get(key, -1) for key in its], dtype=np.int64)
