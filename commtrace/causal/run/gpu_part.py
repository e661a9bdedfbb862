"""The part of ranks that communicate on GPUs: their streams, and the hosts that feed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, rows_of_each
from commtrace.causal.rank.device_graph import EDGES, NODES, DeviceGraph, explained
from commtrace.causal.rank.device_work import rank_tables
from commtrace.causal.rank.moments import Moments
from commtrace.causal.rank.rank_graph import rank_graph
from commtrace.causal.rank.round_trips import round_trips
from commtrace.causal.run.builder import (
    COPY,
    DEVICE,
    FEED,
    HOST,
    JOIN,
    LAUNCH,
    OWN,
    QUEUE,
    WAIT,
    Builder,
)
from commtrace.causal.run.launch_order import LaunchOrder, launched_ns
from commtrace.diagnosis import CannotLook
from commtrace.metrics.run.run_clock import on_run
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["add_gpus"]

_KIND = {
    "run": DEVICE,
    "launch": LAUNCH,
    "stream": QUEUE,
    "turn": QUEUE,
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
_LAGS = (LAUNCH, QUEUE, JOIN)  # kinds of which those in round trips are a rank's own
_SOON_NS = 15_000  # after what it waited for, all that is to be done starts
_UNEXPLAINED_NS = 20_000  # a stream that is idle for longer: something that the trace lacks


def add_gpus(run: Measures, made: Builder, rows: Int64) -> None:
    """The streams and hosts of the ranks of some calls, which ran on GPUs."""
    rank = made.calls.rank[rows]
    ranks = distinct(rank)
    for one, mine in zip(ranks.tolist(), rows_of_each(rank, ranks), strict=True):
        _add_rank(run, made, one, rows[mine])


def _add_rank(run: Measures, made: Builder, rank: int, rows: Int64) -> None:
    tables = rank_tables(run, rank)
    its = rank_graph(run, rank)
    starts = explained(its, _SOON_NS)["start"]
    made.starts += sum(starts.values()) - starts["first"]
    made.explained += sum(starts.values()) - starts["first"] - starts["unexplained"]
    time = on_run(run, rank, its.node_time_ns)
    nodes = made.nodes(time, np.full(time.size, rank))
    start, end = (_kernels(its, tables, kind) for kind in (_START, _END))
    kernel = _of_calls(run, made, tables, rows)
    made.started[rows], made.ended[rows] = nodes[start[kernel]], nodes[end[kernel]]
    communicates = np.zeros(time.size, dtype=np.bool_)
    communicates[start[kernel]] = communicates[end[kernel]] = True
    kind = _KINDS[its.edge_kind].copy()
    is_run, from_start = its.edge_kind == EDGES.index("run"), its.node_kind == _START
    kind[is_run & (its.node_table[its.edge_to] == 1)] = COPY
    kind[(its.edge_kind == EDGES.index("resume")) & from_start[its.edge_from]] = FEED
    still = (kind == QUEUE) & its.edge_binds & (its.edge_lag_ns > _UNEXPLAINED_NS)
    kind[still] = DEVICE
    kind[(its.edge_kind == EDGES.index("call")) & ~its.edge_binds] = WAIT
    works_on = (kind == JOIN) & _late_return(its)
    kept = ~(is_run & communicates[its.edge_from]) & ~works_on
    launched, early = launched_ns(run, rank, tables, time, its)
    called = LaunchOrder.of(rows, launched[start[kernel]], _over_ns(run, rank, tables))
    segment = _segments(called, launched, its)
    segment[~np.isin(kind, OWN) & ~round_trips(its, communicates)] = -1
    segment[early[its.edge_from] | early[its.edge_to]] = -1  # of steps before those recorded
    for each in distinct(kind[kept]).tolist():
        which = kept & (kind == each)
        made.edges(
            each,
            nodes[its.edge_from[which]],
            nodes[its.edge_to[which]],
            its.edge_lag_ns[which],
            segment[which] if each in (*OWN, *_LAGS) else None,
        )
    _work_on(made, rank, called, nodes, time, its, np.flatnonzero(works_on))
    _begin(run, made, tables, rank, called, nodes, its)
    _end_steps(made, tables, nodes, its)
    _end(made, tables, rank, called, nodes, time, its)


def _late_return(its: DeviceGraph) -> Bool:
    """Which waits of the host end long after what they wait for: then it works, as to free memory.

    Neither the device nor another rank is why it comes back so late.
    """
    waits = its.edge_binds & (its.edge_kind == EDGES.index("resume"))
    late: Bool = waits & (its.edge_lag_ns > its.usual_ns["resume"] + _UNEXPLAINED_NS)
    return late


def _work_on(
    made: Builder,
    rank: int,
    called: LaunchOrder,
    nodes: Int64,
    time: Int64,
    its: DeviceGraph,
    edges: Int64,
) -> None:
    """The host wakes as soon as usual, and what is left of the call is its own work."""
    source, target = its.edge_from[edges], its.edge_to[edges]
    wakes = np.full(edges.size, its.usual_ns["resume"])
    woken = made.nodes(time[source] + wakes, np.full(edges.size, rank))
    made.edges(JOIN, nodes[source], woken, wakes)
    call = called.next(time[target])
    made.edges(HOST, woken, nodes[target], its.edge_lag_ns[edges] - wakes, call)


def _segments(called: LaunchOrder, launched: Int64, its: DeviceGraph) -> Int64:
    """The call that each edge comes before, in the order in which the host launched all.

    Not in that of the device: what runs while another call waits is elsewhere on every rank.
    """
    on_host = np.isin(_KINDS[its.edge_kind], (HOST,)) | (its.edge_kind == EDGES.index("resume"))
    starts = its.node_kind == _START
    moment = np.where(on_host | starts[its.edge_to], launched[its.edge_to], launched[its.edge_from])
    return called.next(moment)


def _kernels(its: DeviceGraph, tables: Mapping[str, Rows], kind: int) -> Int64:
    """The nodes where each of a rank's kernels starts, or ends."""
    node: Int64 = np.full(len(tables["kernels"]), -1)
    at = np.flatnonzero((its.node_kind == kind) & (its.node_table == 0))
    node[its.node_row[at]] = at
    return node


def _of_calls(run: Measures, made: Builder, tables: Mapping[str, Rows], rows: Int64) -> Int64:
    """The kernel of each call, from 0 among its rank's: of its device and stream, at its start."""
    kernels, calls = tables["kernels"], run.rows("collectives", made.calls.row[rows])
    device, of_call = kernels.coded("device"), calls.coded("device")
    number = {name: code for code, name in enumerate(device.names)}
    called = np.asarray([*(number.get(name, -1) for name in of_call.names), -1])
    places = (
        np.concatenate((device.codes, called[of_call.codes])),
        np.append(kernels.ints("stream"), calls.ints("stream")),
    )
    count = device.codes.size
    place = codes(*places)
    start_ns = kernels.ints("start_ns")
    begun_ns = calls.ints("start_ns")
    found = Moments(place[:count], start_ns).last(place[count:], begun_ns)
    if (np.append(start_ns, NULL)[found] != begun_ns).any():
        raise CannotLook("needs the kernel of each operation, which one of a copy engine lacks")
    return found


def _begin(
    run: Measures,
    made: Builder,
    tables: Mapping[str, Rows],
    rank: int,
    called: LaunchOrder,
    nodes: Int64,
    its: DeviceGraph,
) -> None:
    """What the host did from the beginning of the first step to its first launch."""
    begins = _steps(tables).ints("start_ns")
    if not begins.size:
        return
    launches = np.flatnonzero((its.node_kind == _LAUNCH) & (its.node_time_ns >= begins.min()))
    waits = np.zeros(its.node_kind.size, dtype=np.bool_)
    waits[its.edge_to] = True
    first = launches[~waits[launches]][:1]
    each = np.full(first.size, rank)
    lag = its.node_time_ns[first] - begins.min()
    begin = on_run(run, rank, its.node_time_ns[first] - lag)
    call = called.rows[: first.size]
    made.edges(HOST, made.nodes(begin, each), nodes[first], lag, call)


def _end_steps(made: Builder, tables: Mapping[str, Rows], nodes: Int64, its: DeviceGraph) -> None:
    """A step is over when all is done that its host launched in it."""
    ends = np.flatnonzero((its.node_kind == _END) & (its.node_table < 2))
    for number, table in enumerate(("kernels", "copies")):
        step = tables[table].ints("step")
        at = ends[its.node_table[ends] == number]
        known: Bool = step[its.node_row[at]] >= 0
        made.end_steps(nodes[at[known]], step[its.node_row[at]][known])


def _end(
    made: Builder,
    tables: Mapping[str, Rows],
    rank: int,
    called: LaunchOrder,
    nodes: Int64,
    time: Int64,
    its: DeviceGraph,
) -> None:
    """What the host did from its last launch, or wait, to the end of the last step.

    Where the trace shows none of its waits it may have waited meanwhile.
    """
    if not len(tables["blocking_calls"]):
        return
    on_host = np.isin(its.node_kind, [NODES.index(kind) for kind in ("launch", "call", "resume")])
    over = np.full(1, called.over_ns)
    last = np.flatnonzero(on_host & (time <= over))[-1:]
    over = over[: last.size]
    end = made.nodes(over, np.full(last.size, rank))
    made.edges(HOST, nodes[last], end, over - time[last], called.next(over))
    made.end_steps(end, _steps(tables).ints("step").max(initial=0, keepdims=True)[: last.size])


def _over_ns(run: Measures, rank: int, tables: Mapping[str, Rows]) -> int:
    """When the host was done with its last step, on the run's clock; before all without steps."""
    steps = _steps(tables)
    end_ns = steps.ints("start_ns") + steps.ints("duration_ns")
    return int(on_run(run, rank, end_ns).max(initial=NULL))


def _steps(tables: Mapping[str, Rows]) -> Rows:
    """A rank's numbered steps, no label's."""
    steps = tables["steps"]
    return steps.take(~steps.coded("label").known & (steps.ints("step") != NULL))
