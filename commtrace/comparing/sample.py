"""One recording as a comparison needs it: what each of its steps went into."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Int64, distinct, sums
from commtrace.causal.critical_path import KIND_OF_EDGE, cut, path_pieces
from commtrace.causal.edits.run_edits import as_measured
from commtrace.causal.run.builder import COPY, DEVICE, FEED, HOST, WAIT
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.busy import devices_busy
from commtrace.causal.work.segments import own_intervals
from commtrace.comparing.kinds import Operation, kinds_of_rows
from commtrace.diagnosis import CannotLook
from commtrace.intervals import covered
from commtrace.measures import measure
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.whole import profiler_steps
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Own", "Sample", "Shared", "sample"]


class Own(NamedTuple):
    """Work that ranks do by themselves: ``compute``, ``copy``, ``host`` or ``idle``.

    The cause, if known, is one of ``loader``, ``checkpoint`` and ``garbage-collection``.
    """

    kind: str
    cause: str | None


class Shared(NamedTuple):
    """What ranks do together: ``transfer``, or ``launch`` from its call to its start."""

    kind: str
    operation: Operation


@dataclass(frozen=True, eq=False)
class Sample:
    """The whole steps of a recording: their numbers, and for each how long it was, and of what.

    ``path_ns`` are the times on the critical path by what it was spent on and by rank, None
    for what is shared; those of a step sum to it. ``own_ns`` is what each rank did by itself,
    on the path or not, and ``before_ns`` the mean of it in a step by the operation that it
    came before. Where the run's communication is in no graph, ``lacking`` says why: then the times
    are the mean of the ranks' steps, and of their devices.
    """

    steps: tuple[int, ...]
    step_ns: Int64
    path_ns: Mapping[tuple[Own | Shared, int | None], Int64]
    own_ns: Mapping[tuple[Own, int], Int64]
    before_ns: Mapping[tuple[Own, int], Mapping[Operation, float]]
    lacking: str | None = None

    def renamed(self, names: Mapping[Operation, Operation]) -> Sample:
        """With some kinds of operations as others."""
        return replace(
            self,
            path_ns={(_renamed(key, names), of): its for (key, of), its in self.path_ns.items()},
            before_ns={
                key: {names.get(kind, kind): time for kind, time in before.items()}
                for key, before in self.before_ns.items()
            },
        )


def _renamed(key: Own | Shared, names: Mapping[Operation, Operation]) -> Own | Shared:
    if isinstance(key, Own):
        return key
    return Shared(key.kind, names.get(key.operation, key.operation))


@measure
def sample(run: Measures) -> Sample:
    """The steps of a run; none if its trace has none."""
    table = profiler_steps(run)
    if not len(table):
        return Sample((), np.empty(0, np.int64), {}, {}, {}, "the trace has no steps")
    try:
        return _of_graph(run)
    except CannotLook as reason:
        return _of_devices(run, table, str(reason))


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Times of a rank within one step; ``call`` is the call that they are of, or come before."""

    rank: Int64
    kind: Int64
    call: Int64
    step: Int64
    start_ns: Int64
    end_ns: Int64


def _of_graph(run: Measures) -> Sample:
    its = run_graph(run)
    path, own = _Sums(len(its.steps)), _Sums(len(its.steps))
    way = path_pieces(run, as_measured(run))
    on_path = _Pieces(way.rank, way.kind, way.call, way.step, way.start_ns, way.end_ns)
    for what, rank, rows, time in _own(run, on_path):
        path.add((what, rank), on_path.step[rows], time)
    for joint, rows, time in _shared(run, on_path):
        path.add((joint, None), on_path.step[rows], time)
    table, of_row = kinds_of_rows(run)
    pieces = _all_own(run)
    before: dict[tuple[Own, int], dict[Operation, float]] = defaultdict(dict)
    for what, rank, rows, time in _own(run, pieces):
        own.add((what, rank), pieces.step[rows], time)
        known = pieces.call[rows] >= 0
        code = of_row[its.calls.row[pieces.call[rows][known]]]
        spent = np.bincount(code, weights=time[known])
        for number in np.flatnonzero(spent).tolist():
            so_far = before[what, rank].get(table[number], 0.0)
            before[what, rank][table[number]] = so_far + float(spent[number]) / len(its.steps)
    # On CPUs what follows the last joint operation delays nobody, and ends no step.
    whole = (sum(path.times.values()) == its.step_ns) & (its.step_ns > 0)
    return Sample(
        tuple(np.asarray(its.steps)[whole].tolist()),
        its.step_ns[whole],
        {key: time[whole] for key, time in path.times.items()},
        {key: time[whole] for key, time in own.times.items()},
        before,
    )


def _all_own(run: Measures) -> _Pieces:
    """All that ranks did by themselves, on the critical path or not."""
    its = run_graph(run)
    end = its.graph.time_ns[its.graph.target[its.own]]
    bounds = np.concatenate(([its.begin_ns], its.end_ns))
    start = np.maximum(end - its.graph.lag_ns[its.own], bounds[0])
    end = np.minimum(end, bounds[-1])
    inside = np.flatnonzero(end > start)
    of, step, start, end = cut(start[inside], end[inside], bounds)
    at = inside[of]
    own = its.own[at]
    rank, kind, call = (
        each.astype(np.int64)
        for each in (its.rank[its.graph.target[own]], its.graph.kind[own], its.own_call[at])
    )
    return _Pieces(rank, kind, call, step, start, end)


def _own(run: Measures, pieces: _Pieces) -> Iterator[tuple[Own, int, Int64, Int64]]:
    """What is of a rank alone: which pieces, and how much of each."""
    its = run_graph(run)
    with_gpu = set(distinct(its.calls.rank[~its.calls.on_cpu]).tolist())
    length = pieces.end_ns - pieces.start_ns
    on_host = np.isin(pieces.kind, (HOST, WAIT))
    for rank in distinct(pieces.rank).tolist():
        mine = np.flatnonzero(on_host & (pieces.rank == rank))
        left = length[mine]
        for cause, when in own_intervals(run, rank).items():
            if cause == "compute" and rank in with_gpu:
                continue  # operators that feed it
            time = covered(pieces.start_ns[mine], pieces.end_ns[mine], when)
            left = left - time
            what = Own(cause, None) if cause == "compute" else Own("host", cause)
            yield what, rank, mine, time
        yield Own("host", None), rank, mine, left
        mine = np.flatnonzero(np.isin(pieces.kind, (COPY, FEED)) & (pieces.rank == rank))
        yield Own("copy", None), rank, mine, length[mine]
        mine = np.flatnonzero((pieces.kind == DEVICE) & (pieces.rank == rank))
        time = covered(pieces.start_ns[mine], pieces.end_ns[mine], devices_busy(run, rank))
        yield Own("compute", None), rank, mine, time
        yield Own("idle", None), rank, mine, length[mine] - time


def _shared(run: Measures, pieces: _Pieces) -> Iterator[tuple[Shared, Int64, Int64]]:
    """What is of an operation: which pieces, and how long they are."""
    table, of_row = kinds_of_rows(run)
    calls = run_graph(run).calls
    for kind in ("transfer", "launch"):
        numbers = [number for number, name in KIND_OF_EDGE.items() if name == kind]
        rows = np.flatnonzero(np.isin(pieces.kind, numbers))
        code = of_row[calls.row[pieces.call[rows]]]
        for number in distinct(code).tolist():
            mine = rows[code == number]
            length = pieces.end_ns[mine] - pieces.start_ns[mine]
            yield Shared(kind, table[number]), mine, length


def _of_devices(run: Measures, table: Rows, why: str) -> Sample:
    """The steps' means over ranks, and where their devices' time went."""
    steps, ranks = distinct(table.ints("step")), distinct(table.ints("rank")).size
    did = devices(run, by_step=True)
    path: dict[tuple[Own | Shared, int | None], Int64] = {}
    for kind, column in (
        ("compute", "compute_ns"),
        ("communication", "exposed_communication_ns"),
        ("copy", "copy_ns"),
        ("idle", "idle_ns"),
    ):
        known = did.take(did.ints(column) != NULL)
        path[Own(kind, None), None] = _by_step(steps, known, column) // ranks
    length = _by_step(steps, table, "duration_ns") // ranks
    return Sample(tuple(steps.tolist()), length, path, {}, {}, why)


def _by_step(steps: Int64, its: Rows, time: str) -> Int64:
    return sums(np.searchsorted(steps, its.ints("step")), its.ints(time), steps.size)


class _Sums:
    """Times by what they are of, in each of so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times: dict[Any, Int64] = {}

    def add(self, key: Any, step: Int64, time_ns: Int64) -> None:
        """More of one."""
        if time_ns.any():
            so_far = self.times.setdefault(key, np.zeros(self.steps, dtype=np.int64))
            np.add.at(so_far, step, time_ns)
