"""Where the steps' time goes: the longest path through the run, across ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, codes, distinct, first_rows, ranges, sums
from commtrace.causal.edits.run_edits import as_measured
from commtrace.causal.replay.graph import Lags, longest_path, replayed
from commtrace.causal.run.builder import (
    COPY,
    DEVICE,
    FEED,
    HOST,
    JOIN,
    LAUNCH,
    MEET,
    OWN,
    QUEUE,
    TRANSFER,
    WAIT,
)
from commtrace.causal.run.replayable import need_replay
from commtrace.causal.run.run_graph import RunGraph, run_graph
from commtrace.causal.work.busy import devices_busy, devices_only_communicate, host_busy
from commtrace.intervals import Intervals, covered, inside
from commtrace.measures import measure
from commtrace.table import Coded, Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "CRITICAL_PATH",
    "CRITICAL_PIECES",
    "KINDS",
    "KIND_OF_EDGE",
    "Pieces",
    "critical_path",
    "critical_pieces",
    "cut",
    "path_pieces",
    "path_with",
]

_When = Callable[["Measures", int], Intervals]

KINDS = ("compute", "transfer", "launch", "host", "copy", "idle")
KIND_OF_EDGE = {
    HOST: "host",
    WAIT: "host",
    DEVICE: "idle",  # but for what ran meanwhile
    COPY: "copy",
    FEED: "copy",
    LAUNCH: "launch",
    QUEUE: "launch",
    MEET: "transfer",
    TRANSFER: "transfer",
    JOIN: "launch",
}
_AT_WORK: Mapping[int, Mapping[str, _When]] = {
    HOST: {"compute": host_busy},
    DEVICE: {"compute": devices_busy, "transfer": devices_only_communicate},
}
"""What a rank's own time is, if that runs meanwhile; each without those before."""
_NO_OPERATION = (HOST, WAIT, DEVICE)

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
            "`compute`, `copy`, `transfer` (all ranks were there, or a device does nothing but "
            "communicate and the trace does not say what waits for it), `launch` (from call to "
            "start), `host` (no operator ran; with GPUs, what the host does between launches) or "
            "`idle` (of a device, the trace does not say why).",
        ),
        Column("op", "category", "The operation that was transferred or launched; else null."),
        Column("time_ns", "int64", "For how long.", "ns"),
    ),
)
CRITICAL_PIECES = Table(
    "critical_pieces",
    "a stretch of the critical path as measured, in the order of time; the sums of these are "
    "`critical_path`",
    (
        *CRITICAL_PATH.only(("step", "rank", "kind", "op")),
        Column("start_ns", "int64", "When it began, on the run's clock.", "ns"),
        Column("end_ns", "int64", "When it ended.", "ns"),
    ),
)


@measure
def critical_path(run: Measures) -> Rows:
    """The critical path of a run: CRITICAL_PATH. It ends with the last step.

    CannotLook where the run cannot be replayed.
    """
    need_replay(run)
    return path_with(run, as_measured(run))


def path_with(run: Measures, lag_ns: Lags) -> Rows:
    """The critical path of the run replayed with these lags: CRITICAL_PATH."""
    pieces = path_pieces(run, lag_ns)
    meanwhile = _meanwhile(run, pieces)
    count, parts = pieces.kind.size, 1 + len(meanwhile)
    op = np.where(np.isin(pieces.kind, _NO_OPERATION), -1, pieces.op)
    columns = (
        np.tile(np.asarray(run_graph(run).steps, dtype=np.int64)[pieces.step], parts),
        np.tile(pieces.rank, parts),
        np.append(_named(pieces), np.repeat([*map(KINDS.index, meanwhile)], count)),
        np.append(op, np.full(count * len(meanwhile), -1)),
    )
    rest = pieces.end_ns - pieces.start_ns - sum(meanwhile.values())
    time_ns = np.concatenate((rest, *meanwhile.values()))
    some = np.flatnonzero(time_ns > 0)
    number = codes(*(column[some] for column in columns))
    first = some[first_rows(number)]
    step, rank, kind, op = (column[first] for column in columns)
    names = run.rows("collectives").coded("op").names
    by_name = np.append(np.argsort(np.argsort(names)), -1)[op]  # whatever came first
    order = np.lexsort((by_name, kind, rank, step))
    return CRITICAL_PATH.rows(
        {
            "step": step[order],
            "rank": rank[order],
            "kind": Coded(kind[order].astype(np.int32), KINDS),
            "op": Coded(op[order].astype(np.int32), names),
            "time_ns": sums(number, time_ns[some], first.size)[order],
        }
    )


@measure
def critical_pieces(run: Measures) -> Rows:
    """Where the critical path of a run lies: CRITICAL_PIECES. CannotLook as ``critical_path``."""
    need_replay(run)
    pieces = path_pieces(run, as_measured(run))
    whole = np.flatnonzero(~np.isin(pieces.kind, [*_AT_WORK]))
    parts = [(whole, pieces.since_ns[whole], pieces.until_ns[whole], _named(pieces)[whole])]
    for mine, when in _at_work(run, pieces):
        of, start, end, name = _split(pieces.since_ns[mine], pieces.until_ns[mine], when)
        parts.append((mine[of], start, end, np.where(name >= 0, name, _named(pieces)[mine[of]])))
    of, start, end, kind = (np.concatenate([part[i] for part in parts]) for i in range(4))
    op = np.where(np.isin(pieces.kind[of], _NO_OPERATION), -1, pieces.op[of])
    order = np.lexsort((end, start))
    columns: dict[str, Int64] = {
        "step": np.asarray(run_graph(run).steps, dtype=np.int64)[pieces.step[of]],
        "rank": pieces.rank[of],
        "start_ns": start,
        "end_ns": end,
    }
    return CRITICAL_PIECES.rows(
        {
            **{name: values[order] for name, values in columns.items()},
            "kind": Coded(kind[order].astype(np.int32), KINDS),
            "op": Coded(op[order].astype(np.int32), run.rows("collectives").coded("op").names),
        }
    )


def _named(pieces: Pieces) -> Int64:
    """Each piece's kind, a position in KINDS."""
    return np.asarray([KINDS.index(KIND_OF_EDGE[edge]) for edge in sorted(KIND_OF_EDGE)])[
        pieces.kind
    ]


def _split(
    start: Int64, end: Int64, when: Mapping[str, Intervals]
) -> tuple[Int64, Int64, Int64, Int64]:
    """Intervals cut where merged sets begin and end: which each was, its times, and its kind.

    The kind is -1 outside of all.
    """
    bounds = distinct(np.concatenate([np.append(*its) for its in when.values()]))
    outer = np.concatenate(([np.iinfo(np.int64).min], bounds, [np.iinfo(np.int64).max]))
    of, _, left, right = cut(start, end, outer)
    kind = np.full(left.size, -1)
    for name, its in when.items():
        kind[inside(left, its)] = KINDS.index(name)
    return of, left, right, kind


class Pieces(Struct, frozen=True, eq=False):
    """Pieces of the longest path through the run, each within one step, the last one first.

    ``kind`` is the edge's; ``call`` is the call of the graph that it is of, of a rank's own work
    the next one, -1 where there is none. From ``since_ns`` to ``until_ns`` a piece was as
    measured, however long it now takes. ``step`` counts the steps from 0.
    """

    rank: Int64
    kind: Int64
    op: Int64
    call: Int64
    step: Int64
    start_ns: Int64
    end_ns: Int64
    since_ns: Int64
    until_ns: Int64


def path_pieces(run: Measures, lag_ns: Lags) -> Pieces:
    """The pieces of the critical path of the run replayed with these lags."""
    its = run_graph(run)
    time, measured = replayed(its.graph, lag_ns), its.graph.time_ns
    last = int(its.last_done[time[its.last_done].argmax()])
    edges = longest_path(its.graph, lag_ns, time, last)
    source, target = its.graph.source[edges], its.graph.target[edges]
    # Before the first moment that the graph knows of the rank, it did something by itself.
    first = int(source[-1]) if edges.size else last
    start = np.append(time[source], its.begin_ns)
    end = np.append(time[target], time[first])
    since = np.append(measured[source], its.begin_ns)
    until = measured[np.append(target, first)]
    ends = np.maximum.accumulate(its.step_ends.at(time))
    bounds = np.concatenate(([its.begin_ns], ends))
    left, right = np.maximum(start, bounds[0]), np.minimum(end, bounds[-1])
    inside = np.flatnonzero(right > left)
    of, step, left, right = cut(left[inside], right[inside], bounds)
    of = inside[of]
    stretch = (until - since)[of] / (end - start)[of]
    return Pieces(
        np.append(its.rank[target], its.rank[first])[of],
        np.append(its.graph.kind[edges], HOST)[of].astype(np.int64),
        np.append(_operation(run, edges), -1)[of],
        np.append(_call(its, edges), -1)[of],
        step,
        left,
        right,
        since[of] + np.rint((left - start[of]) * stretch).astype(np.int64),
        since[of] + np.rint((right - start[of]) * stretch).astype(np.int64),
    )


def _operation(run: Measures, edges: Int64) -> Int64:
    """The code of the operation whose start or end an edge leads to, or comes from to a wait's."""
    its = run_graph(run)
    call_of, op = its.call_of, run.rows("collectives").coded("op").codes
    source, target = (
        np.append(op[its.calls.row], -1)[call_of[nodes[edges]]]
        for nodes in (its.graph.source, its.graph.target)
    )
    return np.where(target >= 0, target, source)


def _call(its: RunGraph, edges: Int64) -> Int64:
    source, target = its.call_of[its.graph.source[edges]], its.call_of[its.graph.target[edges]]
    shared = np.where(target >= 0, target, source)
    segment = np.append(its.own_call, -1)[its.own_of(edges)]
    return np.where(np.isin(its.graph.kind[edges], OWN), segment, shared)


def _meanwhile(run: Measures, pieces: Pieces) -> dict[str, Int64]:
    """How much of each piece of own work is of another kind, as what ran then tells."""
    found: dict[str, Int64] = {}
    for mine, when in _at_work(run, pieces):
        since, until = pieces.since_ns[mine], pieces.until_ns[mine]
        now_ns, before, share = (
            (pieces.end_ns - pieces.start_ns)[mine],
            np.zeros(mine.size, np.int64),
            0.0,
        )
        for name, its in when.items():
            share = share + covered(since, until, its) / np.maximum(until - since, 1)
            until_now = np.rint(share * now_ns).astype(np.int64)
            time_ns = found.setdefault(name, np.zeros(pieces.kind.size, dtype=np.int64))
            time_ns[mine], before = until_now - before, until_now
    return found


def _at_work(run: Measures, pieces: Pieces) -> Iterator[tuple[Int64, Mapping[str, Intervals]]]:
    """Which pieces are a rank's host's or devices', and when these did what."""
    for kind, what in _AT_WORK.items():
        its = pieces.kind == kind
        for rank in distinct(pieces.rank[its]).tolist():
            mine = np.flatnonzero(its & (pieces.rank == rank))
            yield mine, {name: when(run, rank) for name, when in what.items()}


def cut(start: Int64, end: Int64, bounds: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Intervals cut at the bounds: which each was, between which bounds, its start and end."""
    first = np.searchsorted(bounds, start, side="right") - 1
    last = np.searchsorted(bounds, end, side="left") - 1
    count = last - first + 1
    of = np.repeat(np.arange(start.size), count)
    at = ranges(first, count)
    return of, at, np.maximum(start[of], bounds[at]), np.minimum(end[of], bounds[at + 1])
