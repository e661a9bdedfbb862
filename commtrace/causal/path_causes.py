"""What a host without operators did on the critical path, as labels and looks at it tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, rows_by
from commtrace.causal.critical_path import critical_pieces
from commtrace.causal.work.segments import LABELLED, labelled, own_intervals
from commtrace.diagnosis import Cause
from commtrace.intervals import Intervals, covered, inside, subtract, total, union
from commtrace.measures import measure
from commtrace.metrics.run.line_looks import by_function, line_looks
from commtrace.metrics.run.run_clock import on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["labelled_on_path", "lines_on_path"]

_FEW = 5  # looks
_NONE = np.empty(0, np.int64)


@measure
def labelled_on_path(run: Measures) -> Mapping[Cause, int]:
    """How much of the critical path's ``host`` was under a label of each cause, in ns.

    CannotLook as ``critical_path``.
    """
    if not any(labelled(run).values()):
        return {}
    found: dict[Cause, int] = dict.fromkeys(LABELLED, 0)
    for rank, on_path in _hosts_on_path(run).items():
        when = own_intervals(run, rank)
        for cause in LABELLED:
            found[cause] += int(covered(*on_path, when[cause]).sum())
    return found


@measure
def lines_on_path(run: Measures) -> Mapping[str, int]:
    """How much of the critical path's ``host``, labels aside, was at the program's lines, in ns.

    As looks at ranks' threads share it; a function's is that of its line where most are. None where
    hardly any tell. CannotLook as ``critical_path``.
    """
    names, found = dict[str, int](), list[tuple[Int64, Int64]]()
    every = _hosts_on_path(run)
    for rank, on_path in every.items():
        its = line_looks(run, rank)
        if its is None or not its.at_ns.size:
            continue
        when, does = union(*on_path), own_intervals(run, rank)
        for cause in LABELLED:
            when = subtract(when, does[cause])
        there = inside(on_run(run, rank, its.at_ns), when)
        number = np.asarray([names.setdefault(name, len(names)) for name in its.names], np.int64)
        found.append((number[its.line[there]], 1000 * its.passed_us[there]))
    line, time_ns = map(np.concatenate, zip(*found, strict=True)) if found else (_NONE, _NONE)
    if line.size < _FEW:
        return {}
    lines, function = by_function([*names], line, time_ns)
    left_ns = sum(map(total, every.values())) - sum(labelled_on_path(run).values())
    shares = np.bincount(function, time_ns, len(lines)) / max(int(time_ns.sum()), 1)
    return dict(zip(lines, np.rint(left_ns * shares).astype(np.int64).tolist(), strict=True))


def _hosts_on_path(run: Measures) -> dict[int, Intervals]:
    """When each rank's host is on the critical path, piece by piece."""
    pieces = critical_pieces(run)
    pieces = pieces.take(pieces.coded("kind").being("host"))
    start, end = pieces.ints("start_ns"), pieces.ints("end_ns")
    return {rank: (start[at], end[at]) for (rank,), at in rows_by(pieces.ints("rank")).items()}
