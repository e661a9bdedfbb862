"""Which shapes kernels and operators work on: the inputs of the operator that launched them.

Analysing leaves that out, so that the files are read once more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import Int64
from commtrace.engine import each, for_files
from commtrace.errors import TraceError
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.reader.json import Hosted, input_shapes

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Shapes", "shapes"]

_DEEPEST = 256  # operators within operators; more is damage, and would cost its square

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
    with_kernels, ranks = ranks_of(run, "kernels"), run.rows("ranks")
    files = dict(zip(ranks.ints("rank").tolist(), ranks.coded("file").decoded(), strict=True))
    for rank, file in files.items():
        if run.pauses.get(rank):
            continue
        name, when = ("kernels", "launch_ns") if rank in with_kernels else ("ops", "start_ns")
        rows = np.arange(size[name])[places_of_rank(run, name, rank)]
        rows = rows[run.rows(name, rows).coded("kind").being("compute")]
        its = run.rows(name, rows)
        yield _Wanted(Path(str(file)), name, rows, its.ints("thread"), its.ints(when))


def _looked_up(wanted: _Wanted) -> _Texts | str:
    try:
        operators = input_shapes(wanted.file)
    except TraceError as error:
        return str(error)
    threads = {thread: _Thread(operators, thread) for thread in np.unique(wanted.thread).tolist()}
    of_kernels = wanted.table == "kernels"
    return [
        threads[thread].around(time) if of_kernels else threads[thread].beginning(time)
        for thread, time in zip(wanted.thread.tolist(), wanted.start_ns.tolist(), strict=True)
    ]


class _Thread:
    """The operators of one thread, each after those that enclose it."""

    def __init__(self, operators: Hosted, thread: int) -> None:
        rows = np.flatnonzero(operators.thread == thread)
        start, duration = operators.start_ns[rows], operators.duration_ns[rows]
        order = np.lexsort((-duration, start))
        self._starts: list[int] = start[order].tolist()
        self._ends: list[int] = (start + duration)[order].tolist()
        self._shapes = operators.name.codes[rows[order]].tolist()
        self._names = operators.name.names
        self._outer: list[int] = []
        is_open: list[int] = []
        for at, begin in enumerate(self._starts):
            while is_open and self._ends[is_open[-1]] <= begin:
                is_open.pop()
            self._outer.append(is_open[-1] if is_open else -1)
            is_open.append(at)

    def around(self, time_ns: int) -> str | None:
        """The shapes of the innermost operator at a time."""
        at = bisect_right(self._starts, time_ns) - 1
        for _ in range(_DEEPEST):
            if at < 0 or self._ends[at] > time_ns:
                break
            at = self._outer[at]
        return self._names[self._shapes[at]] if at >= 0 and self._ends[at] > time_ns else None

    def beginning(self, time_ns: int) -> str | None:
        """The shapes of the outermost operator that begins at a time."""
        at = bisect_left(self._starts, time_ns)
        begins = at < len(self._starts) and self._starts[at] == time_ns
        return self._names[self._shapes[at]] if begins else None
