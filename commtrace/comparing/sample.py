"""One recording as a comparison needs it: what each of its steps went into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from commtrace.arrays import Float64, Int64, integers
from commtrace.causal.builder import HOST, WAIT
from commtrace.causal.critical_path import KIND_OF_EDGE, longest_way
from commtrace.causal.edits import as_measured
from commtrace.causal.run_graph import run_graph
from commtrace.causal.segments import CAUSES, own_intervals, own_parts
from commtrace.comparing.kinds import Operation, kinds_of_rows
from commtrace.diagnosis import CannotLook
from commtrace.intervals import covered
from commtrace.measures import measure
from commtrace.metrics.rank.devices import devices

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Own", "Sample", "Shared", "sample"]


class Own(NamedTuple):
    """Work that ranks do by themselves: ``compute``, ``copy`` or ``host``, and its cause if known.

    The cause is one of ``loader``, ``checkpoint`` and ``garbage-collection``.
    """

    kind: str
    cause: str | None


class Shared(NamedTuple):
    """What ranks do together: ``transfer``, or ``launch`` from its call to its start."""

    kind: str
    operation: Operation


@dataclass(frozen=True, eq=False)
class Sample:
    """The steps of a recording: their numbers, and for each how long it was, and of what.

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


@measure
def sample(run: Measures) -> Sample:
    """The steps of a run that has any; else its parts, of which ``steps`` has none."""
    try:
        return _of_graph(run)
    except CannotLook as reason:
        return _of_devices(run, str(reason))


def _of_graph(run: Measures) -> Sample:
    its = run_graph(run)
    real = bool((run.steps["label"].isna() & run.steps["step"].notna()).any())
    path = _path(run)
    own, before = _own(run)
    return Sample(its.steps if real else (), its.step_ns, path, own, before)


def _path(run: Measures) -> dict[tuple[Own | Shared, int | None], Int64]:
    """What is on the critical path: a host's own work by what it was."""
    its, way = run_graph(run), longest_way(run, as_measured(run))
    names = np.asarray([KIND_OF_EDGE[number] for number in sorted(KIND_OF_EDGE)], dtype=object)
    kind = names[way.kind]
    length = way.end_ns - way.start_ns
    on_host = np.isin(way.kind, (HOST, WAIT))
    found = _Times(len(its.steps))
    with_gpu = set(np.unique(its.calls.rank[~its.calls.on_cpu]).tolist())
    left = length.copy()
    for rank in np.unique(way.rank[on_host]).tolist():
        mine = np.flatnonzero(on_host & (way.rank == rank))
        for cause, when in own_intervals(run, rank).items():
            if cause == "compute" and rank in with_gpu:
                continue  # operators that feed it
            time = covered(way.since_ns[mine], way.until_ns[mine], when)
            left[mine] -= time
            found.add((_own_kind(cause), rank), way.step[mine], time)
        found.add((Own("host", None), rank), way.step[mine], left[mine])
    own = np.isin(kind, ("compute", "copy"))
    for one, rank in {*zip(kind[own].tolist(), way.rank[own].tolist(), strict=True)}:
        mine = np.flatnonzero(own & (kind == one) & (way.rank == rank))
        found.add((Own(one, None), rank), way.step[mine], length[mine])
    table, of_row = kinds_of_rows(run)
    shared = np.flatnonzero(~on_host & ~own)
    operation = of_row[its.calls.row[way.call[shared]]]
    for one, number in {*zip(kind[shared].tolist(), operation.tolist(), strict=True)}:
        mine = shared[(kind[shared] == one) & (operation == number)]
        found.add((Shared(one, table[number]), None), way.step[mine], length[mine])
    return found.times


def _own(
    run: Measures,
) -> tuple[dict[tuple[Own, int], Int64], dict[tuple[Own, int], dict[Operation, float]]]:
    """What each rank did by itself in each step, and before which operations."""
    its = run_graph(run)
    calls, steps = its.calls, np.asarray(its.steps)
    table, of_row = kinds_of_rows(run)
    operation = of_row[calls.row]
    at = np.minimum(np.searchsorted(steps, calls.step), steps.size - 1)
    inside = steps[at] == calls.step
    parts = own_parts(run)
    own = _Times(steps.size)
    before: dict[tuple[Own, int], dict[Operation, float]] = {}
    for rank in np.unique(calls.rank).tolist():
        mine = np.flatnonzero(inside & (calls.rank == rank))
        for cause in CAUSES:
            key = _own_kind(cause), rank
            own.add(key, at[mine], parts[cause][mine])
            sums = np.bincount(
                operation[mine], weights=parts[cause][mine], minlength=len(table)
            )
            before[key] = {
                table[number]: float(sums[number]) / steps.size
                for number in np.flatnonzero(sums).tolist()
            }
    return own.times, before


def _own_kind(cause: str) -> Own:
    return Own(cause, None) if cause in ("compute", "copy", "host") else Own("host", cause)


def _of_devices(run: Measures, why: str) -> Sample:
    """The steps' means over ranks, and where their devices' time went."""
    table = run.steps[run.steps["label"].isna() & run.steps["step"].notna()]
    if not len(table):
        return Sample((), np.empty(0, np.int64), {}, {}, {}, why)
    steps = np.unique(integers(table["step"]))
    ranks = int(table["rank"].nunique())
    length = _by_step(steps, table["step"], table["duration_ns"])
    did = devices(run, by_step=True)
    path: dict[tuple[Own | Shared, int | None], Int64] = {}
    for kind, column in (
        ("compute", "compute_ns"),
        ("communication", "exposed_communication_ns"),
        ("copy", "copy_ns"),
        ("idle", "idle_ns"),
    ):
        known = did.dropna(subset=column)
        path[Own(kind, None), None] = _by_step(steps, known["step"], known[column]) // ranks
    return Sample(tuple(steps.tolist()), length // ranks, path, {}, {}, why)


def _by_step(steps: Int64, step: pd.Series[int], time: pd.Series[int]) -> Int64:
    sums = np.zeros(steps.size, dtype=np.int64)
    at = np.searchsorted(steps, integers(step))
    np.add.at(sums, at, integers(time))
    return sums


class _Times:
    """Times by key and step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times: dict = {}

    def add(self, key: object, step: Int64, time_ns: Int64 | Float64) -> None:
        """More of one key."""
        if time_ns.any():
            sums = self.times.setdefault(key, np.zeros(self.steps, dtype=np.int64))
            np.add.at(sums, step, time_ns)
