"""Everything that a timeline shows, in one table, on one clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, distinct, first_rows, grouped, ranges, rows_by
from commtrace.intervals import NEVER, union
from commtrace.measures import measure
from commtrace.metrics.run.arrivals import called_ns
from commtrace.metrics.run.call_kinds import intervals
from commtrace.metrics.run.run_clock import on_run
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Column, Columns, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["TIMELINE_EVENTS", "timeline_events"]

_EVER = np.iinfo(np.int64)

TIMELINE_EVENTS = Table(
    "timeline_events",
    "one kernel, copy, operator or communication operation, on the run's clock; by rank, device, "
    "stream and start",
    (
        Column("rank", "int64", "The rank."),
        Column("device", "category", "torch's name, with the trace's own number: `cuda:0`, `cpu`."),
        Column("stream", "int64", "The CUDA or HIP stream; on the CPU the thread."),
        Column("start_ns", "int64", "When it started, in Unix time on the run's clock.", "ns"),
        Column("duration_ns", "int64", "How long it ran.", "ns"),
        Column("wait_ns", "int64", "How long it waited for other ranks, from its start.", "ns"),
        Column("kind", "category", "`compute`, `copy` or `communication`."),
        Column("name", "category", "The name of a kernel or operator, an operation, or a route."),
        Column("operation", "int64", "The operation's number, as in `operations`; -1 for others."),
    ),
)


@measure
def timeline_events(run: Measures) -> Rows:
    """What ran when on each stream or thread: TIMELINE_EVENTS.

    Communication is listed from ``collectives``, not a second time as a kernel; of a rank that uses
    a GPU the operators on its CPU are not listed, since the trace keeps only a few of them. A rank
    without a clock in common with the others keeps its own.
    """
    events = TIMELINE_EVENTS.rows(*_parts(run))
    device = events.coded("device")
    by = (events.ints("start_ns"), events.ints("stream"), device.codes, ~device.known)
    return events.take(np.lexsort((*by, events.ints("rank"))))


def _parts(run: Measures) -> Iterator[Columns]:
    kernels, copies, ops = (run.rows(table) for table in ("kernels", "copies", "ops"))
    yield _part(run, kernels.take(kernels.coded("kind").being("compute")).columns, "compute")
    yield _part(run, {**copies.columns, "name": _routes(copies)}, "copy")
    with_gpu = distinct(np.append(kernels.ints("rank"), copies.ints("rank")))
    computing = _computing(ops.take(~np.isin(ops.ints("rank"), with_gpu)))
    on_cpu = Coded(np.zeros(len(computing["rank"]), np.int32), ("cpu",))
    yield _part(run, {**computing, "stream": computing["thread"], "device": on_cpu}, "compute")
    yield _communication(run)


def _computing(ops: Rows) -> Columns:
    """The operators that compute, in parts: without what is communication within them.

    As a DTensor's, which waits for its collective.
    """
    computes = ops.coded("kind").being("compute")
    begin, end = ops.when()
    parts = [(NEVER[0], *NEVER)]
    for at in rows_by(ops.ints("rank"), ops.ints("thread")).values():
        calls, mine = at[~computes[at]], at[computes[at]]
        called, done = union(begin[calls], end[calls])
        first = np.searchsorted(done, begin[mine], side="right")
        count = np.maximum(np.searchsorted(called, end[mine]) - first, 0) + 1
        row, between = np.repeat(mine, count), ranges(first, count)
        since = np.maximum(begin[row], np.append(_EVER.min, done)[between])
        until = np.minimum(end[row], np.append(called, _EVER.max)[between])
        left = until > since
        parts.append((row[left], since[left], until[left]))
    row, since, until = map(np.concatenate, zip(*parts, strict=True))
    return {**ops.take(row).columns, "start_ns": since, "duration_ns": until - since}


def _communication(run: Measures) -> Columns:
    # Coalesced operations share one kernel: it is drawn once.
    once = first_rows(intervals(run))
    called = run.rows("collectives", once)
    wait, operation = (matched(run).waits.ints(name)[once] for name in ("wait_ns", "operation"))
    since = called_ns(called) - called.ints("start_ns")
    shown = np.where(wait == NULL, 0, since + np.where(wait == NULL, 0, wait))
    return {
        **_part(run, {**called.columns, "name": called.coded("op")}, "communication"),
        "wait_ns": shown.clip(0, called.ints("duration_ns")),
        "operation": operation,
    }


def _part(run: Measures, events: Any, kind: str) -> Columns:
    rank = events["rank"]
    return {
        **{name: events[name] for name in ("rank", "device", "stream", "duration_ns", "name")},
        "start_ns": on_run(run, rank, events["start_ns"]),
        "wait_ns": np.zeros_like(rank),
        "kind": Coded(np.zeros(rank.size, np.int32), (kind,)),
        "operation": np.full_like(rank, -1),
    }


def _routes(copies: Rows) -> Coded:
    """``HtoD host → cuda:0`` of each copy; only its kind where a side is unknown."""
    columns = [copies.coded(name) for name in ("kind", "source", "destination")]
    each = grouped(*columns)
    code = np.empty(len(copies), np.int32)
    for number, mine in enumerate(each):
        code[mine] = number
    return Coded(code, tuple(_route(*(its.at(mine[0]) for its in columns)) for mine in each))


def _route(kind: str | None, source: str | None, destination: str | None) -> str:
    what = kind or "copy"
    known = source is not None and destination is not None
    return f"{what} {source} → {destination}" if known else what
