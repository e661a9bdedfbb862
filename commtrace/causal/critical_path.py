"""Where the steps' time goes: the longest way through the run, across ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import Int64
from commtrace.causal.builder import COPY, DEVICE, HOST, JOIN, LAUNCH, MEET, QUEUE, TRANSFER, WAIT
from commtrace.causal.graph import Graph
from commtrace.causal.run_graph import run_graph
from commtrace.causal.segments import busy
from commtrace.intervals import covered
from commtrace.measures import measure
from commtrace.table import Coded, Column, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["CRITICAL_PATH", "KINDS", "critical_path"]

KINDS = ("compute", "transfer", "launch", "host", "copy", "idle")
_OF_EDGE = {
    HOST: "host",
    WAIT: "host",
    DEVICE: "compute",
    COPY: "copy",
    LAUNCH: "launch",
    QUEUE: "launch",
    MEET: "transfer",
    TRANSFER: "transfer",
    JOIN: "launch",
}

CRITICAL_PATH = Table(
    "critical_path",
    "what a rank did for how long on the critical path of a step: the times of a step sum to it, "
    "from the last rank's end of the step before to its own last rank's end",
    (
        Column("step", "int64", "n of `ProfilerStep#n`; of a run without steps its n-th tenth."),
        Column(
            "rank", "int64", "The rank that the path was on; of a transfer the one that got it."
        ),
        Column(
            "kind",
            "category",
            "`compute`, `copy`, `transfer` (all ranks were there), `launch` (from call to start), "
            "`host` (no operator ran) or `idle` (of a device).",
        ),
        Column("op", "category", "The operation that was transferred or launched; else null."),
        Column("time_ns", "int64", "For how long.", "ns"),
    ),
)


@measure
def critical_path(run: Measures) -> pd.DataFrame:
    """The critical path of a run: CRITICAL_PATH. It ends with the last joint operation.

    CannotLook where ranks have no clock in common.
    """
    its = run_graph(run)
    time = its.graph.time_ns
    last = int(its.ends[-1][time[its.ends[-1]].argmax()])
    way = _binding(its.graph, last)
    start, end = time[its.graph.source[way]], time[its.graph.target[way]]
    rank, kind = its.rank[its.graph.target[way]], its.graph.kind[way].astype(np.int64)
    op = its.operation[way]
    # Before the first moment that the graph knows of the rank, it did something by itself.
    source = int(its.graph.source[way[-1]]) if way.size else last
    start, end = np.append(start, its.begin_ns), np.append(end, time[source])
    rank, kind, op = np.append(rank, its.rank[source]), np.append(kind, HOST), np.append(op, -1)
    bounds = np.concatenate(([its.begin_ns], np.maximum.accumulate(its.end_ns)))
    start, end = np.clip(start, bounds[0], bounds[-1]), np.clip(end, bounds[0], bounds[-1])
    inside = end > start
    of, step, start, end = _cut(start[inside], end[inside], bounds)
    rank, kind, op = rank[inside][of], kind[inside][of], op[inside][of]
    computes = np.zeros(of.size, dtype=np.int64)
    for one in np.unique(rank).tolist():
        mine = (rank == one) & (kind == HOST)
        when = busy(run, one)
        computes[mine] = covered(start[mine], end[mine], when)
    named = np.asarray([KINDS.index(_OF_EDGE[number]) for number in sorted(_OF_EDGE)])[kind]
    rows = pd.DataFrame(
        {
            "step": np.tile(np.asarray(its.steps)[step], 2),
            "rank": np.tile(rank, 2),
            "kind": np.append(named, np.zeros(of.size, np.int64)),
            "op": np.append(np.where(named == KINDS.index("host"), -1, op), np.full(of.size, -1)),
            "time_ns": np.append(end - start - computes, computes),
        }
    )
    sums = (
        rows[rows["time_ns"] > 0]
        .groupby(["step", "rank", "kind", "op"])["time_ns"]
        .sum()
        .reset_index()
    )
    ops = run.collectives["op"].cat
    return CRITICAL_PATH.frame(
        {
            "step": sums["step"].to_numpy(np.int64),
            "rank": sums["rank"].to_numpy(np.int64),
            "kind": Coded(sums["kind"].to_numpy(np.int32), KINDS),
            "op": Coded(sums["op"].to_numpy(np.int32), tuple(ops.categories)),
            "time_ns": sums["time_ns"].to_numpy(np.int64),
        }
    )


def _cut(start: Int64, end: Int64, bounds: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Intervals cut at the bounds: which each was, between which bounds, its start and end."""
    first = np.searchsorted(bounds, start, side="right") - 1
    last = np.searchsorted(bounds, end, side="left") - 1
    count = last - first + 1
    of = np.repeat(np.arange(start.size), count)
    at = first[of] + np.arange(of.size) - np.repeat(np.cumsum(count) - count, count)
    return of, at, np.maximum(start[of], bounds[at]), np.minimum(end[of], bounds[at + 1])


def _binding(graph: Graph, last: int) -> Int64:
    """The edges of the longest way to a node, the last one first."""
    at = np.lexsort((graph.lag_ns, graph.target))
    first = np.searchsorted(graph.target[at], np.arange(graph.time_ns.size + 1))
    arrives = graph.time_ns[graph.source] + graph.lag_ns == graph.time_ns[graph.target]
    way: list[int] = []
    node = last
    while True:
        into = at[first[node] : first[node + 1]]
        into = into[arrives[into]]
        if not into.size:
            return np.asarray(way, dtype=np.int64)
        edge = int(into[graph.time_ns[graph.source[into]].argmax()])
        way.append(edge)
        node = int(graph.source[edge])
