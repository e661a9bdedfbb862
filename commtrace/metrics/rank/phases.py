"""In which phase of training an operation was launched: forward, backward, optimizer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes
from commtrace.comms import AUTOGRAD
from commtrace.few_bytes import Integers, if_one
from commtrace.measures import measure, taken
from commtrace.metrics.rank.rank_threads import rank_threads
from commtrace.metrics.rank.rows_of import measured_ranks, places_of_rank, places_of_ranks, ranks_of
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["launching_threads", "own_threads", "phase_of", "phases"]

_WORDS = {
    "forward": "forward",
    "fwd": "forward",
    "backward": "backward",
    "bwd": "backward",
    "optimizer": "optimizer",
    "optim": "optimizer",
}
_PHASES = tuple(dict.fromkeys(_WORDS.values()))
_WORD = re.compile(r"[A-Z]?[a-z]+")


@measure
def phases(run: Measures) -> Coded:
    """The phase of each row of ``collectives``; null if unknown.

    What tells it, best first, at the time of the launch on the same rank:

    1. the innermost labelled range whose name is of one phase: ``## forward ##``,
       ``DistributedDataParallel.forward``, ``Optimizer.step#SGD.step``, ``FSDP::post_backward``;
    2. a running ``autograd::engine::evaluate_function``: backward. Only traces of CPUs keep it;
    3. a launch from a thread that no ``ProfilerStep`` is a range of: backward, as PyTorch runs
       that of a GPU on threads of its own. A program with threads of its own that
       communicate is misread here, unless it labels what they do.

    What the program's own thread launches is of no phase without a label: forward and, say,
    an all_gather before the optimizer look the same.
    """
    calls, steps = run.rows("collectives"), run.rows("steps")
    rank, launch_ns = calls.ints("rank"), calls.ints("launch_ns")
    found = np.full(rank.size, -1, dtype=np.int32)
    away = _away(rank, launching_threads(run).values(), steps)
    found[(launch_ns != NULL) & away] = _PHASES.index("backward")
    ranges: dict[int, list[_Range]] = defaultdict(list)
    for one in (*_autograd(run.rows("ops")), *_labels(steps)):
        ranges[one.rank].append(one)
    for its, of_rank in ranges.items():
        row = np.arange(rank.size)[places_of_rank(run, "collectives", its)]
        row = row[launch_ns[row] != NULL]
        row = row[np.argsort(launch_ns[row])]
        for one in of_rank:
            first, last = np.searchsorted(launch_ns[row], (one.start_ns, one.end_ns))
            found[row[first:last]] = _PHASES.index(one.phase)
    return Coded(if_one(found), _PHASES)


class _Range(NamedTuple):
    rank: int
    start_ns: int
    end_ns: int
    phase: str


@measure
def launching_threads(run: Measures) -> Integers:
    """The thread that launched the kernel of each row of collectives; NULL if unknown."""
    found = np.full(len(run.rows("collectives")), NULL)
    for ranks in measured_ranks(run) if ranks_of(run, "kernels") else ():
        its = taken(rank_threads, run, *ranks)
        found[places_of_ranks(run, "collectives", ranks)] = its["thread"]
    threads = Integers.of(found)
    return Integers(threads.base, if_one(threads.above))


def own_threads(steps: Rows) -> Int64:
    """The program's own: that of each of the profiler's steps."""
    return steps.ints("thread")[~steps.coded("label").known]


def _away(rank: Int64, thread: Int64, steps: Rows) -> Bool:
    """What a thread launched that is none of the steps' of its rank, which has some."""
    own = ~steps.coded("label").known
    with_steps = steps.ints("rank")[own]
    place = codes(np.append(with_steps, rank), np.append(steps.ints("thread")[own], thread))
    of_steps, place = np.split(place, [with_steps.size])
    away: Bool = (thread != NULL) & np.isin(rank, with_steps) & ~np.isin(place, of_steps)
    return away


def _autograd(ops: Rows) -> Iterator[_Range]:
    names = ops.coded("name").names
    return _ranges(ops, "name", {its: "backward" for its in names if its.startswith(AUTOGRAD)})


def _labels(steps: Rows) -> Iterator[_Range]:
    phases = ((name, phase_of(name)) for name in steps.coded("label").names)
    return _ranges(steps, "label", {name: phase for name, phase in phases if phase})


def _ranges(events: Rows, column: str, phase_of: dict[str, str]) -> Iterator[_Range]:
    """The events whose name tells a phase; who encloses another comes before it."""
    if not phase_of:
        return iter(())
    name = events.coded(column)
    at = np.flatnonzero(name.where(phase_of.__contains__))
    rank, start, duration = (events.ints(its)[at] for its in ("rank", "start_ns", "duration_ns"))
    order = np.lexsort((-duration, start))
    phase = np.asarray([phase_of.get(its) for its in name.names], dtype=object)[name.codes[at]]
    columns = (rank, start, start + duration, phase)
    return map(_Range, *(column[order].tolist() for column in columns))


def phase_of(label: str) -> str | None:
    """The phase that a label names; None if it names none, or several.

    >>> phase_of("## forward ##"), phase_of("all_reduce")
    ('forward', None)
    """
    words = (_WORDS.get(word.lower()) for word in _WORD.findall(label))
    found = {word for word in words if word}
    return found.pop() if len(found) == 1 else None
