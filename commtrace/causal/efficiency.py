"""How evenly and how efficiently a run works: slowdown by stragglers, and the POP efficiencies."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import Float64, Int32, Int64, distinct, rows_of_each
from commtrace.causal.edits.run_edits import as_measured, even, transfers
from commtrace.causal.replay.graph import Change, Lags, changed, changes
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.replayable import replayable
from commtrace.causal.run.run_graph import run_graph
from commtrace.comms import members
from commtrace.intervals import subtract, total, union, united
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import ranks_of_hosts
from commtrace.metrics.run.group_dimensions import group_dimensions
from commtrace.quantiles import quantiles
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["EFFICIENCY", "SLOWDOWN", "efficiency", "slowdown"]

SLOWDOWN = Table(
    "slowdown",
    "the run's slowdown by uneven work, or the part of a rank, a host, a pipeline's stage or an "
    "operation in it",
    (
        Column("by", "category", "`run`, `rank`, `host`, `stage` or `op`."),
        Column("rank", "Int64", "The rank; null if by something else."),
        Column("host", "category", "The host; null if by something else."),
        Column("stage", "Int64", "The stage, from 0, of all pipelines; null if by something else."),
        Column("op", "category", "The operation; null if by something else."),
        Column(
            "slowdown",
            "float64",
            "Of the run: its time over its time if all ranks did each segment of their own work "
            "in their mean time. By rank, host or stage: the same with only these as measured, and "
            "all others even. By operation: the run's time over its time if each transfer of the "
            "operation took the median of its kind. 1 is no slowdown. Of more than 64 ranks, or "
            "hosts, only those with the most work beyond the mean are replayed: null for others.",
        ),
    ),
)

EFFICIENCY = Table(
    "efficiency",
    "the efficiencies of the run as POP defines them; own work is what a rank does by itself, "
    "without waiting",
    (
        Column("load_balance", "float64", "Mean own work of the ranks over the most."),
        Column("communication", "float64", "The most own work of a rank over the run's time."),
        Column("transfer", "float64", "The run's time if transfers took no time over its time."),
        Column(
            "serialisation",
            "float64",
            "The most own work of a rank over the run's time if transfers took no time.",
        ),
        Column("parallel", "float64", "Load balance times communication efficiency."),
    ),
)


_REPLAYED = 64  # ranks, or hosts: each costs a replay of the whole run


@measure
def slowdown(run: Measures) -> Rows:
    """How much slower uneven work makes the run: SLOWDOWN; empty where no graph holds the run."""
    if not replayable(run):
        return SLOWDOWN.rows()
    edges, mean = even(run)
    lag = as_measured(run)
    time, ideal = _run_ns(run, lag, ((edges[:0], mean[:0]), (edges, mean)))
    evened = changed(lag, (edges, mean))
    del mean
    rows = [
        {"by": "run", "slowdown": _ratio(time, ideal)},
        *_by_ranks(run, edges, evened, ideal),
        *_by_operation(run, time),
    ]
    none = dict.fromkeys(("rank", "host", "stage", "op"))
    return SLOWDOWN.of_dicts([{**none, **row} for row in rows])


def _by_ranks(
    run: Measures, edges: Int32 | Int64, evened: Lags, ideal_ns: int
) -> list[dict[str, Any]]:
    """With only some ranks' work, of these edges, not in its mean time: each rank, host, stage."""
    its, lag = run_graph(run), as_measured(run)
    some: list[tuple[dict[str, Any], list[int]]] = [
        *(({"by": "rank", "rank": rank}, [rank]) for rank in distinct(its.calls.rank).tolist()),
        *(({"by": "host", "host": host}, on) for host, on in ranks_of_hosts(run).items()),
        *(({"by": "stage", "stage": stage}, on) for stage, on in enumerate(_stages(run))),
    ]
    of = its.rank[its.graph.target[edges]]
    most = max((rank for _, ranks in some for rank in ranks), default=0)
    more = np.subtract(lag[edges], evened[edges], dtype=np.int64).clip(min=0)
    beyond = np.bincount(of, more, minlength=most + 1)
    replayed = _most([(row["by"], float(beyond[ranks].sum())) for row, ranks in some])
    of_rank = [edges[rows] for rows in rows_of_each(of, np.arange(most + 1))]
    del of, more
    uneven = (np.concatenate([of_rank[rank] for rank in some[at][1]]) for at in replayed)
    each = _run_ns(run, evened, ((these, lag[these]) for these in uneven))
    times = dict(zip(replayed, each, strict=True))
    values = [_ratio(times[at], ideal_ns) if at in times else None for at in range(len(some))]
    return [{**row, "slowdown": value} for (row, _), value in zip(some, values, strict=True)]


def _by_operation(run: Measures, time_ns: int) -> list[dict[str, Any]]:
    """With steady transfers of one operation: each."""
    op = run.rows("collectives").coded("op").take(run_graph(run).calls.row)
    lag, usual, names = as_measured(run), _usual(run), sorted(op.occurring())
    steady = (transfers(run, op.being(name), usual) for name in names)
    return [
        {"by": "op", "op": name, "slowdown": _ratio(time_ns, each)}
        for name, each in zip(names, _run_ns(run, lag, steady), strict=True)
    ]


@measure
def efficiency(run: Measures) -> Rows:
    """The POP efficiencies: EFFICIENCY, one row; none where no graph holds the run."""
    if not replayable(run):
        return EFFICIENCY.rows()
    lag, every = as_measured(run), np.ones(run_graph(run).calls.rank.size, dtype=np.bool_)
    at_once = transfers(run, every, np.zeros(every.size))
    time, ideal = _run_ns(run, lag, (changes(lag, lag), at_once))
    own = _own_ns(run)
    most, mean = max(own), float(np.mean(own))
    row = {
        "load_balance": _ratio(mean, most),
        "communication": _ratio(most, time),
        "transfer": _ratio(ideal, time),
        "serialisation": _ratio(most, ideal),
        "parallel": _ratio(mean, time),
    }
    return EFFICIENCY.of_dicts([row])


def _most(beyond: list[tuple[str, float]]) -> list[int]:
    """The places of those that are replayed, of each kind, by what they have beyond the mean."""
    found: list[int] = []
    for kind in {kind for kind, _ in beyond}:
        places = [at for at, (its, _) in enumerate(beyond) if its == kind]
        found += sorted(places, key=lambda at: -beyond[at][1])[:_REPLAYED]
    return sorted(found)


def _stages(run: Measures) -> list[list[int]]:
    """The ranks of each stage, of all pipelines together; none without pipelines."""
    table = group_dimensions(run)
    pipelines = table.coded("communicator").take(table.coded("dimension").being("pp"))
    ranks = [members(name) for name in pipelines.decoded() if name is not None]
    return [[rank for rank in its if rank is not None] for its in zip_longest(*ranks)]


def _run_ns(run: Measures, lag_ns: Lags, edits: Iterable[Change]) -> list[int]:
    """How long the run is with each change of these lags."""
    ends = run_graph(run).step_ends.replayed(lag_ns, edits).max(axis=0)
    return [end - run_graph(run).begin_ns for end in ends.tolist()]


def _usual(run: Measures) -> Float64:
    """The median transfer of calls of each call's kind."""
    its = run_graph(run)
    kind = its.calls.kind
    return quantiles(kind, its.transfer_ns, 50, int(kind.max(initial=-1)) + 1)[kind]


def _own_ns(run: Measures) -> list[int]:
    """How long each rank worked by itself within the run.

    Of a GPU's host not what it does while the GPU communicates: there it is ahead, and its rank
    waits all the same.
    """
    its = run_graph(run)
    start, end = (
        np.clip(its.graph.time_ns[nodes[its.own]], its.begin_ns, its.end_ns.max())
        for nodes in (its.graph.source, its.graph.target)
    )
    rank = its.calls.rank[its.own_call]
    on_host = its.own_column == HOSTS
    ranks, on_gpu = distinct(its.calls.rank), np.flatnonzero(~its.calls.on_cpu)
    calls_of_each = rows_of_each(its.calls.rank[on_gpu], ranks)
    found = []
    for at, work in zip(calls_of_each, rows_of_each(rank, ranks), strict=True):
        calls = on_gpu[at]
        communicating = union(
            its.graph.time_ns[its.started[calls]], its.graph.time_ns[its.ended[calls]]
        )
        host, device = (
            union(start[mine], end[mine]) for mine in (work[on_host[work]], work[~on_host[work]])
        )
        ahead = subtract(host, communicating)
        found.append(total(united(device, ahead)))
    return found


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
