"""Where in the program ranks' own work is, as the recorder's looks at their threads have it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, distinct, rows_by
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_intervals
from commtrace.intervals import inside
from commtrace.measures import measure
from commtrace.metrics.run.line_looks import LineLooks, by_function, line_looks
from commtrace.metrics.run.run_clock import on_run
from commtrace.quantiles import median, medians

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Longer", "Looks", "longer_at", "looks", "only_there_ns"]

_RUNS = 0.4  # of the time, in which others may have its core: else it waits
_FEW, _FEW_ALONE = 5, 3  # looks; at what no other rank is ever seen at
_HARDLY = 0.1  # of what these ranks are there


_Segments = tuple[Int64, ...]


class Longer(Struct, frozen=True):
    """A line of a ``function``, the number of one, in which ranks are longer than others.

    By ``more_ns``, in all; ``runs`` is the share of their time there in which their threads run
    Python.
    """

    line: str
    function: int
    more_ns: float
    runs: float


class Looks(Struct, frozen=True, eq=False):
    """The looks at ranks' own work: not at what waits for others.

    Each look is at the own work of a ``call``, a row of the graph's, at a ``line``, the number of
    one of ``lines``, in a ``function``, the number of one; it stands for ``time_ns``. In Python is
    what the thread ran of that, ``python_ns``, if it mostly ran, and neither an operator nor what
    has a label. ``ranks`` are all that the recorder looked at.
    """

    ranks: Int64
    lines: tuple[str, ...]
    call: Int64
    line: Int64
    function: Int64
    time_ns: Int64
    python_ns: Int64

    def take(self, which: Bool) -> Looks:
        """Some of them."""
        columns = self.call, self.line, self.function, self.time_ns, self.python_ns
        return Looks(self.ranks, self.lines, *(each[which] for each in columns))

    def by_rank(self, run: Measures, time_ns: Int64, of: Int64) -> Float64:
        """Sums of a time of each look: ranks × the lines or functions that they are ``of``."""
        rank = run_graph(run).calls.rank[self.call]
        shape = self.ranks.size, len(self.lines)  # there are no more functions
        cell = np.searchsorted(self.ranks, rank) * shape[1] + of
        times = np.bincount(cell, time_ns, shape[0] * shape[1])
        return np.asarray(times.reshape(shape), dtype=np.float64)


@measure
def looks(run: Measures) -> Looks | None:
    """Those at all ranks; None where no recording has any such. CannotLook as ``run_graph``."""
    every = ((rank, line_looks(run, rank)) for rank in distinct(run_graph(run).calls.rank).tolist())
    seen = {rank: its for rank, its in every if its is not None and its.at_ns.size}
    if not seen:
        return None
    names, segments = dict[str, int](), _segments(run)
    parts = [_at_own_work(run, rank, its, segments[rank], names) for rank, its in seen.items()]
    call, line, time_ns, python_ns = map(np.concatenate, zip(*parts, strict=True))
    if not call.size:
        return None
    _, function = by_function([*names], line, time_ns)
    ranks = np.asarray([*seen], dtype=np.int64)
    return Looks(ranks, tuple(names), call, line, function, time_ns, python_ns)


def _at_own_work(
    run: Measures, rank: int, its: LineLooks, segments: _Segments, names: dict[str, int]
) -> tuple[Int64, ...]:
    """Of each look at own work its call, the line's number in ``names``, all time, in Python."""
    number = [names.setdefault(name, len(names)) for name in its.names]
    at = on_run(run, rank, its.at_ns)
    begin, end, call = segments
    near = np.searchsorted(end[:-1], at)
    own = (begin[near] < at) & (at <= end[near])
    python_ns = np.where(its.ran_us >= _RUNS * its.passed_us, 1000 * its.ran_us, 0)
    for when in own_intervals(run, rank).values():
        python_ns[inside(at, when)] = 0
    line = np.asarray(number, np.int64)[its.line]
    found = call[near], line, 1000 * its.passed_us, python_ns
    return tuple(each[own] for each in found)


def _segments(run: Measures) -> dict[int, _Segments]:
    """The own work of each rank's host: beginnings, ends in order, and the call behind each.

    At least one of each rank, be it of no length.
    """
    its = run_graph(run)
    host = its.own_column == HOSTS
    edges, call = its.own[host], its.own_call[host].astype(np.int64)
    end = its.graph.time_ns[its.graph.target[edges]]
    begin, rank = end - its.graph.lag_ns[edges], its.calls.rank[call]
    order = np.lexsort((end, rank))
    of_ranks = rows_by(rank[order]).items()
    found = {
        one: tuple(its[order[rows]] for its in (begin, end, call)) for (one,), rows in of_ranks
    }
    none = (np.zeros(1, np.int64),) * 3
    return {one: found.get(one, none) for one in distinct(its.calls.rank).tolist()}


def longer_at(run: Measures, ranks: Collection[int], steps: Collection[int] = ()) -> Longer | None:
    """Where these ranks are longer than others: so long in a function, and most of that at a line.

    In the mean of them, beyond the median of the others; in some of the graph's steps, if these are
    given. None where too few looks tell.
    """
    its = looks(run)
    if its is None:
        return None
    if steps:
        its = its.take(np.isin(run_graph(run).step_of[its.call], list(steps)))
    if not its.call.size:
        return None
    mine, others = _beside(run, its, ranks, its.time_ns, its.function)
    more = mine - others
    enough = np.where(others > 0, _FEW, _FEW_ALONE) * median(its.time_ns)
    longest = int(np.where(more >= enough, more, 0).argmax())
    if more[longest] < enough[longest]:
        return None
    in_python, _ = _beside(run, its, ranks, its.python_ns, its.function)
    runs = float(in_python[longest] / mine[longest])
    there = its.take(its.function == longest)
    each, usual = _beside(run, there, ranks, there.time_ns, there.line)
    line = its.lines[int((each - usual).argmax())]
    return Longer(line, longest, float(more[longest]), runs)


def only_there_ns(run: Measures, ranks: Collection[int]) -> float:
    """How long these ranks are, in the mean, in Python that others hardly run, in all."""
    its = looks(run)
    if its is None:
        return 0.0
    mine, others = _beside(run, its, ranks, its.python_ns, its.function)
    only = (mine >= _FEW * median(its.time_ns)) & (others <= _HARDLY * mine)
    return float(mine[only].sum())


def _beside(
    run: Measures, its: Looks, ranks: Collection[int], time_ns: Int64, of: Int64
) -> tuple[Float64, Float64]:
    """Sums of a time of each look by what it is ``of``: these ranks' mean, the others' median.

    Nothing where none of either were looked at.
    """
    times, mine = its.by_rank(run, time_ns, of), np.isin(its.ranks, list(ranks))
    if not mine.any() or mine.all():
        return (nothing := np.zeros(len(its.lines))), nothing
    return times[mine].mean(axis=0), np.asarray(medians(times[~mine], axis=0))
