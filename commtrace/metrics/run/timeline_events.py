"""Everything that a timeline shows, in one table, on one clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, Int64, integers
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import rows_at
from commtrace.metrics.run.arrivals import called_ns
from commtrace.metrics.run.collectives import INTERVAL
from commtrace.metrics.run.run_clock import on_run
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Column, Columns, Table

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["TIMELINE_EVENTS", "timeline_events"]

_ROUTE = ["kind", "source", "destination"]

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
def timeline_events(run: Measures) -> pd.DataFrame:
    """What ran when on each stream or thread: TIMELINE_EVENTS.

    Communication is listed from ``collectives``, not a second time as a kernel; of a rank that uses
    a GPU the operators on its CPU are not listed, since the trace keeps only a few of them. A rank
    without a clock in common with the others keeps its own.
    """
    events = TIMELINE_EVENTS.frame(*_parts(run))
    return events.sort_values(
        ["rank", "device", "stream", "start_ns"], kind="stable", ignore_index=True
    )


def _parts(run: Measures) -> Iterator[Columns]:
    compute = (run.kernels["kind"] == "compute").to_numpy()
    yield _part(run, run.kernels[compute], "compute")
    yield _part(run, run.copies, "copy", name=_routes(run.copies))
    with_gpu = {*run.kernels["rank"].unique(), *run.copies["rank"].unique()}
    ops = run.ops[(run.ops["kind"] == "compute") & ~run.ops["rank"].isin(with_gpu)]
    ops = ops.rename(columns={"thread": "stream"}).assign(device="cpu")
    yield _part(run, ops.astype({"device": "category"}), "compute")
    yield _communication(run)


def _communication(run: Measures) -> Columns:
    # Coalesced operations share one kernel: it is drawn once.
    once = np.flatnonzero(~run.collective_columns[INTERVAL].duplicated())
    called = rows_at(run, "collectives", once)
    waits = matched(run).waits[["operation", "wait_ns"]].iloc[once]
    start, duration = integers(called["start_ns"]), integers(called["duration_ns"])
    wait = integers(waits["wait_ns"])
    since = called_ns(called) - start
    shown = np.where(wait == NULL, 0, since + np.where(wait == NULL, 0, wait))
    return {
        **_part(run, called, "communication", name=_codes(called["op"])),
        "wait_ns": shown.clip(0, duration),
        "operation": integers(waits["operation"]),
    }


def _part(
    run: Measures, events: pd.DataFrame, kind: str, name: Coded | None = None
) -> dict[str, Int64 | Coded]:
    rank = integers(events["rank"])
    start = on_run(run, rank, integers(events["start_ns"]))
    return {
        "rank": rank,
        "device": _codes(events["device"]),
        "stream": integers(events["stream"]),
        "start_ns": start,
        "duration_ns": integers(events["duration_ns"]),
        "wait_ns": np.zeros_like(rank),
        "kind": Coded(np.zeros(rank.size, np.int32), (kind,)),
        "name": _codes(events["name"]) if name is None else name,
        "operation": np.full_like(rank, -1),
    }


def _routes(copies: pd.DataFrame) -> Coded:
    """``HtoD host → cuda:0`` of each copy; only its kind where a side is unknown."""
    code = copies.groupby(_ROUTE, observed=True, dropna=False).ngroup().to_numpy().astype(np.int32)
    _, first = np.unique(code, return_index=True)
    routes = copies[_ROUTE].iloc[first].astype(object)
    names = [_route(*route) for route in routes.itertuples(index=False)]
    return Coded(code, tuple(names))


def _route(kind: Any, source: Any, destination: Any) -> str:
    what = kind if isinstance(kind, str) else "copy"
    known = isinstance(source, str) and isinstance(destination, str)
    return f"{what} {source} → {destination}" if known else what


def _codes(column: pd.Series[Any]) -> Coded:
    return Coded(column.cat.codes.to_numpy().astype(np.int32), tuple(column.cat.categories))
