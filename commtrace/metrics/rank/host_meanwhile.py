"""What a rank's host ran at some times."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64
from commtrace.errors import TraceError
from commtrace.intervals import Intervals, covered, intersect, total, union
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.nesting import outermost
from commtrace.quantiles import median
from commtrace.reader.json import Hosted, python_functions

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = [
    "HostMeanwhile",
    "SlowView",
    "function_during",
    "host_meanwhile",
    "outermost_operators",
    "slow_view",
]

_MOST = 0.75  # of the times
_FUNCTION = re.compile(r"(?P<file>[^<].*)\((?P<line>\d+)\): (?P<name>.+)")
_TORCHS = "torch/"
# Operators that move no bytes: 0.3 to 9 µs in the traces of eight machines.
_VIEWS = {
    f"aten::{name}"
    for name in ("as_strided", "detach", "expand", "select", "slice", "t", "transpose", "view")
}
_SLOW_NS, _FEWEST = 15_000, 100


class HostMeanwhile(Struct, frozen=True):
    """For how long the host ran ``operators`` that no others call, by name, longest first.

    ``none_ns`` is how long it ran none, on no thread.
    """

    operators: tuple[tuple[str, int], ...]
    none_ns: int


class SlowView(Struct, frozen=True):
    """An operator that moves no bytes, and how long it takes a host in the median."""

    name: str
    time_ns: float


def host_meanwhile(run: Measures, rank: int, when: Intervals) -> HostMeanwhile | None:
    """What a rank's host ran in a merged set of times, on the rank's own clock.

    None where its trace has no operators.
    """
    its = outermost_operators(run, rank)
    if not its.start_ns.size:
        return None
    start, end, name = its.start_ns, its.start_ns + its.duration_ns, its.name
    time = _by_name(its, when)
    order = np.argsort(-time, kind="stable")[: np.count_nonzero(time)].tolist()
    return HostMeanwhile(
        operators=tuple((name.names[code], int(time[code])) for code in order),
        none_ns=total(when) - total(intersect(union(start, end), when)),
    )


def function_during(run: Measures, rank: int, when: Intervals) -> str | None:
    """The innermost function of the program's that a rank's host was in for most of these times.

    With its file and first line, as the profiler notes them with ``with_stack=True``, and torch's
    that it had called, if it was in one: ``train.py:57 in main, by torch/hub.py:9 in load``. None
    where it notes none, or where the file cannot be read again.
    """
    its = _functions(run, rank)
    if its is None or not its.name.names:
        return None
    lasts = np.bincount(its.name.codes, its.duration_ns, len(its.name.names))
    most = np.flatnonzero(_by_name(its, when) >= _MOST * total(when))
    inwards = [its.name.names[code] for code in most[np.argsort(-lasts[most], kind="stable")]]
    known = [found for name in inwards if (found := _FUNCTION.fullmatch(name))]
    own = [found for found in known if not found["file"].startswith(_TORCHS)]
    said = [*own[-1:], *([known[-1]] if known and known[-1] not in own else ())]
    lines = [f"{found['file']}:{found['line']} in {found['name']}" for found in said]
    return ", by ".join(lines) or None


def _by_name(its: Hosted, when: Intervals) -> Float64:
    """How much of these times each name holds, in ns: what calls itself counts again."""
    inside = covered(its.start_ns, its.start_ns + its.duration_ns, when)
    return np.asarray(np.bincount(its.name.codes, inside, len(its.name.names)), dtype=np.float64)


@measure
def outermost_operators(run: Measures, rank: int) -> Hosted:
    """The operators of a rank that no others call, on the rank's own clock."""
    rows = rows_of_rank(run, "host_operators", rank)
    if not len(rows):
        rows = rows_of_rank(run, "ops", rank)
        # Communication is there whatever encloses it.
        rows = rows.take(outermost(*map(rows.ints, ("thread", "start_ns", "duration_ns"))))
    return _hosted(rows)


def slow_view(run: Measures, rank: int) -> SlowView | None:
    """That a rank's host takes long for what costs next to nothing; None where it does not."""
    its = outermost_operators(run, rank)
    views = its.name.where(_VIEWS.__contains__)
    if views.sum() < _FEWEST or (time_ns := median(its.duration_ns[views])) < _SLOW_NS:
        return None
    most = np.bincount(its.name.codes[views]).argmax()
    return SlowView(its.name.names[most], time_ns)


def _hosted(rows: Rows) -> Hosted:
    return Hosted(
        rows.coded("name"), rows.ints("thread"), rows.ints("start_ns"), rows.ints("duration_ns")
    )


@measure
def _functions(run: Measures, rank: int) -> Hosted | None:
    """The functions of Python in a rank's file; None where it cannot be read again."""
    file = file_of(run, rank)
    try:
        return None if file is None else python_functions(file)
    except TraceError:
        return None
