"""The part of ranks that communicate on GPUs: their streams, and the hosts that feed them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, integers
from commtrace.causal.builder import COPY, DEVICE, HOST, JOIN, LAUNCH, QUEUE, Builder
from commtrace.causal.device_graph import EDGES, NODES, DeviceGraph, device_graph
from commtrace.causal.device_work import rank_columns
from commtrace.diagnosis import CannotLook
from commtrace.matching import on_run_clock
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["add_gpus"]

_KIND = {
    "run": DEVICE,
    "launch": LAUNCH,
    "stream": QUEUE,
    "wait": JOIN,
    "collective": JOIN,
    "inferred_wait": JOIN,
    "latent_wait": JOIN,
    "resume": JOIN,
    "call": HOST,
    "host": HOST,
    "handoff": HOST,
}
_KINDS = np.asarray([_KIND[name] for name in EDGES])
_START, _END, _LAUNCH = (NODES.index(name) for name in ("start", "end", "launch"))
_UNEXPLAINED_NS = 20_000  # a stream that stands still for longer: something that the trace lacks


def add_gpus(run: Measures, made: Builder, rows: Int64) -> None:
    """The streams and hosts of the ranks of some calls, which ran on GPUs."""
    calls = made.calls
    for rank in np.unique(calls.rank[rows]).tolist():
        _add_rank(run, made, rank, rows[calls.rank[rows] == rank])


def _add_rank(run: Measures, made: Builder, rank: int, rows: Int64) -> None:
    its = device_graph(rank_columns(run, rank))
    time, _ = on_run_clock(
        its.node_time_ns, np.full(its.node_time_ns.size, rank), matched(run).clock
    )
    nodes = made.nodes(time, np.full(time.size, rank))
    start, end = _kernels(run, its, rank)
    kernel = _of_calls(run, made, rank, rows)
    made.started[rows], made.ended[rows] = nodes[start[kernel]], nodes[end[kernel]]
    communicates = np.zeros(time.size, dtype=np.bool_)
    communicates[start[kernel]] = True
    kind = _KINDS[its.edge_kind].copy()
    is_run = its.edge_kind == EDGES.index("run")
    kind[is_run & (its.node_table[its.edge_to] == 1)] = COPY
    still = (kind == QUEUE) & its.edge_binds & (its.edge_lag_ns > _UNEXPLAINED_NS)
    kind[still] = DEVICE
    kept = ~(is_run & communicates[its.edge_from])
    segment = _segments(made, rows, time, its)
    for each in np.unique(kind[kept]).tolist():
        which = kept & (kind == each)
        made.edges(
            each,
            nodes[its.edge_from[which]],
            nodes[its.edge_to[which]],
            its.edge_lag_ns[which],
            segment[which] if each in (HOST, DEVICE, COPY) else None,
        )
    _end_steps(run, made, rank, nodes, its)


def _kernels(run: Measures, its: DeviceGraph, rank: int) -> tuple[Int64, Int64]:
    """The nodes where each of a rank's kernels starts and ends."""
    count = int((run.kernels["rank"] == rank).sum())
    found = []
    for kind in (_START, _END):
        node: Int64 = np.full(count, -1)
        at = np.flatnonzero((its.node_kind == kind) & (its.node_table == 0))
        node[its.node_row[at]] = at
        found.append(node)
    return found[0], found[1]


def _of_calls(run: Measures, made: Builder, rank: int, rows: Int64) -> Int64:
    """The kernel of each call, from 0 among its rank's: of its device and stream, at its start."""
    kernels = run.kernels[run.kernels["rank"] == rank]
    number = {key: at for at, key in enumerate(_keys(kernels))}
    found = [number.get(key, -1) for key in _keys(run.collectives.iloc[made.calls.row[rows]])]
    if -1 in found:
        raise CannotLook("an operation that is no kernel, as of a copy engine")
    return np.asarray(found, dtype=np.int64)


def _keys(table: pd.DataFrame) -> Iterable[tuple[str, int, int]]:
    """What tells a rank's kernels apart: device, stream, start."""
    device, stream = table["device"].astype(str).tolist(), table["stream"].tolist()
    return zip(device, stream, table["start_ns"].tolist(), strict=True)


def _segments(made: Builder, rows: Int64, time: Int64, its: DeviceGraph) -> Int64:
    """The call that each edge comes before: on the host by its launch, on a device by its start."""
    calls = made.calls
    answer: Int64 = np.full(its.edge_from.size, -1)
    on_host = np.isin(_KINDS[its.edge_kind], (HOST,))
    for which, moment, at in (
        (on_host, calls.launch_ns[rows], time[its.edge_to]),
        (~on_host, calls.start_ns[rows], time[its.edge_from]),
    ):
        order = np.argsort(moment, kind="stable")
        following = np.searchsorted(moment[order], at[which], side="left")
        answer[which] = np.append(rows[order], -1)[following]
    return answer


def _end_steps(run: Measures, made: Builder, rank: int, nodes: Int64, its: DeviceGraph) -> None:
    """A step is over when all is done that its host launched in it."""
    ends = np.flatnonzero((its.node_kind == _END) & (its.node_table < 2))
    for number, table in enumerate((run.kernels, run.copies)):
        step = integers(table.loc[table["rank"] == rank, "step"])
        at = ends[its.node_table[ends] == number]
        known: Bool = step[its.node_row[at]] >= 0
        made.end_steps(nodes[at[known]], step[its.node_row[at]][known])
