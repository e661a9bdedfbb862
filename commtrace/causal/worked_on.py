"""What ranks compute on: operators and their inputs, which are in the files only.

Analysing leaves them out, so that the files of the ranks in question are read once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Int64, codes, first_rows
from commtrace.engine import each, for_files
from commtrace.errors import TraceError
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.reader.json import OperatorInputs, operator_inputs
from commtrace.reader.nesting import enclosing

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Done", "What", "worked_on"]


class What(NamedTuple):
    """An operator, and the shapes and types of its inputs, as JSON."""

    name: str
    shapes: str
    types: str


class Done(NamedTuple):
    """How often, and for how long in all."""

    times: float
    time_ns: float


class _Asked(NamedTuple):
    """Of one rank's file what it computed: when and on which thread it ran, or was launched."""

    file: Path
    is_launched: bool
    thread: Int64
    at_ns: Int64
    duration_ns: Int64


def worked_on(
    run: Measures, ranks: Sequence[int], steps: Int64
) -> Mapping[int, Mapping[What, Done]]:
    """What ranks computed on in these steps, as far as their files tell it.

    On GPUs it is the operator that launched a kernel, and the kernel's time; on CPUs an operator's
    own, without those that it calls. A rank lacks where shapes were not recorded
    (``record_shapes=True``), and where its file cannot be read again, or is one of several.
    """
    asked = {rank: its for rank in ranks if (its := _asked(run, rank, steps)) is not None}
    rank_of = {its.file: rank for rank, its in asked.items()}
    outcomes = each(_done, [*asked.values()], for_files([*rank_of]))
    return {
        rank_of[its.file]: found for its, found in outcomes if isinstance(found, dict) and found
    }


def _asked(run: Measures, rank: int, steps: Int64) -> _Asked | None:
    ranks = run.rows("ranks")
    file = ranks.coded("file").at(int(np.flatnonzero(ranks.ints("rank") == rank)[0]))
    if run.pauses.get(rank) or file is None:
        return None
    is_launched = rank in ranks_of(run, "kernels")
    table, at = ("kernels", "launch_ns") if is_launched else ("ops", "start_ns")
    its = run.rows(table, places_of_rank(run, table, rank))
    its = its.take(its.coded("kind").being("compute") & np.isin(its.ints("step"), steps))
    return _Asked(
        Path(str(file)), is_launched, *(its.ints(name) for name in ("thread", at, "duration_ns"))
    )


def _done(asked: _Asked) -> dict[What, Done] | None:
    try:
        found = operator_inputs(asked.file)
    except TraceError:
        return None
    operator, time_ns = (_launching if asked.is_launched else _running)(found, asked)
    columns = [its.take(operator) for its in (found.name, found.shapes, found.types)]
    if not operator.size:
        return None
    number = codes(*columns)
    first = first_rows(number)
    what = map(What, *(its.take(first).decoded() for its in columns))
    order = number[first]
    each_count = np.bincount(number)[order].tolist()
    each_time = np.bincount(number, weights=time_ns)[order].tolist()
    return dict(zip(what, map(Done, each_count, each_time), strict=True))


def _launching(found: OperatorInputs, asked: _Asked) -> tuple[Int64, Int64]:
    """The operators that launched kernels, and how long these took."""
    moments = np.zeros_like(asked.at_ns)
    by = _around(
        (found.thread, found.start_ns, found.duration_ns), (asked.thread, asked.at_ns, moments)
    )
    return by[by >= 0], asked.duration_ns[by >= 0]


def _running(found: OperatorInputs, asked: _Asked) -> tuple[Int64, Int64]:
    """The operators within those that are asked for, and how long each ran itself."""
    outer = enclosing(found.thread, found.start_ns, found.duration_ns)
    called = outer >= 0
    within = np.bincount(outer[called], weights=found.duration_ns[called], minlength=outer.size)
    own_ns = np.maximum(found.duration_ns - within.astype(np.int64), 0)
    moments = np.zeros_like(found.start_ns)
    by = _around(
        (asked.thread, asked.at_ns, asked.duration_ns), (found.thread, found.start_ns, moments)
    )
    rows = np.flatnonzero(by >= 0)
    return rows, own_ns[rows]


def _around(spans: tuple[Int64, ...], moments: tuple[Int64, ...]) -> Int64:
    """The span that is around each moment on its thread; -1 for none."""
    columns = (np.concatenate(its) for its in zip(spans, moments, strict=True))
    return enclosing(*columns)[spans[0].size :]
