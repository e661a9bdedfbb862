"""What a host does while its GPU has nothing to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.intervals import Intervals, total
from commtrace.metrics.rank.host_meanwhile import host_meanwhile
from commtrace.units import cut, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["label_in", "meanwhile"]

_NAMED = 3
_LEAST = 0.01  # of the time: what takes less is not worth a word
_IN_PYTHON = "loading data, a synchronising call, printing, allocating, compiling"
_REMEDIES = {
    "flatten_dense_tensors": "DDP packs its module's buffers: broadcast_buffers=False, if none "
    "changes",
    "_foreach_": "a fused optimizer (fused=True) launches once",
}
_NAME = 40  # characters


def meanwhile(run: Measures, rank: int, when: Intervals) -> str:
    """What a host does in a merged set of times, as far as its file tells, and what to do then."""
    its = host_meanwhile(run, rank, when)
    if its is None or not its.operators:
        return f"look at what the host does meanwhile: {_IN_PYTHON}"
    least = _LEAST * total(when)
    many = [(name, time) for name, time in its.operators[:_NAMED] if time >= least]
    ran = [(cut(name, _NAME), ms(time)) for name, time in many or its.operators[:1]]
    runs = ", ".join(f"{name} for {time}" for name, time in ran)
    said = f"meanwhile the host runs {runs}"
    if its.none_ns >= least:
        said += f"{',' * (len(ran) > 1)} and no operator for {ms(its.none_ns)}"
    todo = [do for what, do in _REMEDIES.items() if any(what in name for name, _ in ran)]
    if its.none_ns > total(when) / 2:
        todo = [_IN_PYTHON]
    return ": ".join((said, "; ".join(todo))) if todo else said


def label_in(run: Measures, rank: int, when: Intervals) -> str | None:
    """The innermost labelled range that most of the time was spent in, if there is one."""
    steps = run.rows("steps")
    ranges = steps.take(steps.coded("label").known & (steps.ints("rank") == rank))
    opens = ranges.ints("start_ns")
    closes = opens + ranges.ints("duration_ns")
    time: dict[str, int] = {}
    for first, last in zip(*(times.tolist() for times in when), strict=True):
        around = np.flatnonzero((opens <= (first + last) // 2) & ((first + last) // 2 < closes))
        if around.size:
            innermost = around[(closes - opens)[around].argmin()]
            label = cut(str(ranges.coded("label").at(innermost)), _NAME)
            time[label] = time.get(label, 0) + last - first
    most = max(time, key=lambda label: time[label], default=None)
    return most if most and time[most] > total(when) / 2 else None
