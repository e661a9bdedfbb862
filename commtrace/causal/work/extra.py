"""How long ranks take for operators that others do not run, as often, in the same step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Float64, Int64, distinct, rows_by
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.calls import Calls
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.own_operators import alike
from commtrace.causal.work.own_times import OwnTimes, own_times
from commtrace.causal.work.segments import labelled, own_work
from commtrace.intervals import inside
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.metrics.run.run_clock import on_run
from commtrace.quantiles import medians

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["extra_ns"]

_MOST = 64  # ranks: of more each is compared with too many
_ALIKE = 0.5  # of a rank's places, at which another comes, too: then it runs the same program


class _Ran(NamedTuple):
    """A rank's operators: the call each is before (-1 for none), its step, name and duration."""

    call: Int64
    step: Int64
    name: Int64
    duration_ns: Int64

    def of(self, step: int) -> _Ran:
        """Those of a step."""
        mine = self.step == step
        return _Ran(*(its[mine] for its in self))


@measure
def extra_ns(run: Measures) -> Float64:
    """Of each call's own work on its host the time in operators that others run less often.

    Not of those under a label that tells what they are for, as a data loader's.
    In the same step, in the median of the ranks that make mostly the same calls; of an operator
    that they run, too, that share of its time by which it runs oftener.
    """
    calls = run_graph(run).calls
    found = np.zeros(calls.rank.size)
    known = ranks_of(run, "ops")
    ranks = [rank for rank in distinct(calls.rank).tolist() if rank in known]
    if not 1 < len(ranks) <= _MOST or not calls.on_cpu.any():
        return found
    times = own_times(run, HOSTS)
    times = times.of(np.argsort(times.begin_ns, kind="stable"))
    rows, none = rows_by(calls.rank[times.call]), np.empty(0, np.int64)
    ran = [_ran(run, rank, times.of(rows.get((rank,), none))) for rank in ranks]
    beside = _beside(calls, ranks)
    for step in distinct(calls.step).tolist():
        for call, time in _in_step([its.of(step) for its in ran], beside):
            np.add.at(found, call, time)
    work = own_work(run)
    own = work.own_ns[:, HOSTS]
    if work.waited_ns is not None:
        found *= own / np.maximum(own + work.waited_ns[:, HOSTS], 1)
    return np.minimum(found, own)


def _in_step(ran: list[_Ran], beside: list[Bool]) -> Iterator[tuple[Int64, Float64]]:
    """Of each rank the calls, and the time before each in what those beside it run less often."""
    names = int(max(its.name.max(initial=0) for its in ran)) + 1
    often = np.stack([np.bincount(its.name, minlength=names) for its in ran])
    for its, mine, others in zip(ran, often, beside, strict=True):
        if others.any():
            more = np.maximum(mine - medians(often[others], axis=0), 0)
            share = more / np.maximum(mine, 1)
            within = its.call >= 0
            yield its.call[within], (share[its.name] * its.duration_ns)[within]


def _ran(run: Measures, rank: int, work: OwnTimes) -> _Ran:
    table = run.rows("ops", places_of_rank(run, "ops", rank))
    its = table.coded("kind").being("compute")
    for ranges in labelled(run).values():  # whose time counts, whatever runs there
        if (when := ranges.get(rank)) is not None:
            its &= ~inside(table.ints("start_ns"), when)
    table = table.take(its)
    start = on_run(run, rank, table.ints("start_ns"))
    call = np.full(start.size, -1, dtype=np.int64)
    if work.call.size:
        at = np.searchsorted(work.begin_ns, start, side="right") - 1
        within = (at >= 0) & (start < work.end_ns[at])
        call[within] = work.call[at[within]]
    name = alike(table.coded("name")).codes.astype(np.int64)
    return _Ran(call, table.ints("step"), name, table.ints("duration_ns"))


def _beside(calls: Calls, ranks: list[int]) -> list[Bool]:
    """Of each rank those of the others that come to most of its places."""
    comes = np.zeros((len(ranks), int(calls.place.max(initial=0)) + 1), dtype=np.bool_)
    known = np.isin(calls.rank, ranks)
    comes[np.searchsorted(ranks, calls.rank[known]), calls.place[known]] = True
    both = comes.astype(np.int64) @ comes.T
    alike = both > _ALIKE * comes.sum(axis=1)[:, None]
    np.fill_diagonal(alike, False)
    return list(alike)
