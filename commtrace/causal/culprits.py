"""Who delays a run: the ranks whose own work, made typical, makes its steps shorter."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.builder import MEET
from commtrace.causal.causes import cause_of, doubt_of, excess
from commtrace.causal.chance import above_zero
from commtrace.causal.edits import as_measured, even, saved, step_ns, typical, typically_idle
from commtrace.causal.run_graph import run_graph
from commtrace.causal.segments import own_work, work_with
from commtrace.diagnosis import CannotLook, Cause
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["AWAITED", "Culprit", "Culprits", "Waits", "culprits", "evened", "modelled"]

_OTHERS = 0.25  # of its saving: what any other rank may save, or it is not one that delays
_CHANCE = 0.01
_SPIKE = 6  # times the noise
_MANY_STEPS = 5
_SPIKES_SHARE = 0.6  # of all that is saved
_NOISE_CPU_NS = 2_000_000
_NOISE_GPU_NS = 50_000
_MOST = 4  # culprits, one on top of the other


AWAITED = ("collective", "root", "send", "recv")
"""What others wait for: a rank in an operation that needs all, a root, a sender, a receiver."""


@dataclass(frozen=True, eq=False)
class Waits:
    """The waits of others for some ranks: from ``start_ns`` to ``end_ns``, ``kind`` of AWAITED.

    ``call`` is the call that waited, a row of the graph's.
    """

    call: Int64
    start_ns: Int64
    end_ns: Int64
    kind: Int64

    @property
    def mostly(self) -> str:
        """Of which kind most of the time is."""
        time = np.bincount(self.kind, weights=self.end_ns - self.start_ns, minlength=len(AWAITED))
        return AWAITED[int(time.argmax())]


@dataclass(frozen=True, eq=False)
class Culprit:
    """Ranks that together delay a run, by ``saved_ns`` alone and ``on_top_ns`` after those before.

    ``steps_ns`` is what each step is shorter without (on top), ``noise_ns`` the scatter of that.
    ``p_value`` is the chance that it is not in every step, corrected for the ranks tried;
    ``spikes`` are the steps in which it is, if it is in few. ``others_ns`` is the most that any
    other rank alone saves. ``cause`` is one of CAUSES, or None; ``parts_ns`` their excess over
    what is typical, summed; ``call`` the call before which most of it is, a row of the graph's.
    ``waits`` are the others' for them. ``doubt`` says why it is not sure.
    """

    ranks: tuple[int, ...]
    saved_ns: int
    on_top_ns: int
    replayed_step_ns: int
    steps_ns: Int64
    noise_ns: float
    p_value: float
    spikes: tuple[int, ...]
    others_ns: int
    cause: Cause | None
    parts_ns: dict[Cause, float]
    call: int
    waits: Waits
    doubt: str | None

    @property
    def persistent(self) -> bool:
        """Whether it delays every step, beyond chance and noise."""
        every = bool((self.steps_ns > 2 * self.noise_ns).all()) and self.steps_ns.size > 1
        return self.p_value < _CHANCE or every


@dataclass(frozen=True, eq=False)
class Culprits:
    """Who delays a run, in order, each on top of those before; ``lag_ns`` are the lags without."""

    found: tuple[Culprit, ...]
    lag_ns: Int64


@measure
def culprits(run: Measures, min_share: float) -> Culprits:
    """Who saves at least that share of the steps' time if typical, in every step or in spikes.

    CannotLook for one rank, and where ranks have no clock in common.
    """
    its = run_graph(run)
    ranks = np.unique(its.calls.rank).tolist()
    if len(ranks) < 2:
        raise CannotLook("one rank only: waiting is not separable")
    found: list[Culprit] = []
    lag = as_measured(run)
    least = min_share * float(its.step_ns.sum())
    taken: list[int] = []
    while len(found) < min(_MOST, len(ranks) - 1):
        left = [rank for rank in ranks if rank not in taken]
        who = _next(run, left, lag, least)
        if who is None:
            break
        edited = who.edit(run, who.ranks, lag)
        culprit = _weighed(run, who, edited, len(ranks))
        if not (culprit.persistent or culprit.spikes):
            break
        found.append(culprit)
        taken += who.ranks
        lag = edited
    return Culprits(tuple(found), lag)


def modelled(run: Measures) -> bool:
    """Whether replays of a run's own work hold: its ranks communicate from CPUs, on one clock.

    On GPUs the graph lacks waits of hosts that no trace shows: it tells where time went, not yet
    what would be saved.
    """
    called = run.collectives
    if not len(called) or not (called["device"] == "cpu").all():
        return False
    try:
        return bool(run_graph(run).calls.on_cpu.all())
    except CannotLook:
        return False


@measure
def evened(run: Measures, min_share: float) -> Int64:
    """What each step is shorter if all ranks do each segment in their mean time, culprits aside."""
    known = culprits(run, min_share)
    but = [rank for culprit in known.found for rank in culprit.ranks]
    return saved(run, known.lag_ns, [even(run, known.lag_ns, but)])[:, 0]


_Edit = Callable[["Measures", Collection[int], Int64], Int64]


@dataclass(frozen=True)
class _Who:
    ranks: tuple[int, ...]
    edit: _Edit
    steps_ns: Int64
    others_ns: int


def _next(run: Measures, left: list[int], lag: Int64, least: float) -> _Who | None:
    """The fewest ranks whose typical work saves most, if it saves enough, and others do not.

    On CPUs also if they are only idle as long as is typical: where processes share cores what
    they compute takes long by turns.
    """
    work = work_with(run, lag)  # those mended before are typical of the others, too

    def as_others(run: Measures, ranks: Collection[int], lag: Int64) -> Int64:
        return typical(run, ranks, lag, work=work)

    edits: tuple[_Edit, ...] = (as_others,)
    if run_graph(run).calls.on_cpu.any():
        edits += (typically_idle,)
    found = [who for edit in edits if (who := _of_edit(run, left, lag, least, edit)) is not None]
    return max(found, key=lambda who: int(who.steps_ns.sum()), default=None)


def _of_edit(run: Measures, left: list[int], lag: Int64, least: float, edit: _Edit) -> _Who | None:
    singles = saved(run, lag, (edit(run, [rank], lag) for rank in left))
    totals, surely = singles.sum(axis=0), _surely(singles)
    best = int(totals.argmax())
    rest = int(np.delete(surely, best).max(initial=0))
    if totals[best] >= least and rest <= _OTHERS * totals[best]:
        return _Who((left[best],), edit, singles[:, best], rest)
    sets = [ranks for ranks in _sets(run, left) if 1 < len(ranks) <= len(left) / 2]
    if not sets:
        return None
    shorter = saved(run, lag, (edit(run, ranks, lag) for ranks in sets))
    together = shorter.sum(axis=0)
    fits = [
        at
        for at, ranks in enumerate(sets)
        if together[at] >= least and _rest(left, ranks, surely) <= _OTHERS * together[at]
    ]
    if not fits:
        return None
    most = max(together[at] for at in fits)
    at = next(at for at in sorted(fits, key=lambda at: len(sets[at])) if together[at] >= 0.9 * most)
    return _Who(sets[at], edit, shorter[:, at], max(_rest(left, sets[at], surely), 0))


def _surely(steps_ns: Int64) -> Int64:
    """What is saved in all, less the standard error of that: steps × edits."""
    count = steps_ns.shape[0]
    error = steps_ns.std(axis=0, ddof=1) * np.sqrt(count) if count > 1 else 0.0
    return np.asarray(steps_ns.sum(axis=0) - error, dtype=np.int64)


def _rest(left: list[int], ranks: tuple[int, ...], totals: Int64) -> int:
    outside = [
        total for rank, total in zip(left, totals.tolist(), strict=True) if rank not in ranks
    ]
    return max(outside, default=0)


def _sets(run: Measures, left: list[int]) -> list[tuple[int, ...]]:
    """Ranks of a host, of a process group; and those with the most excess, ever more of them."""
    its, work = run_graph(run), own_work(run)
    excess = np.nan_to_num(work.own_ns - work.mean_ns).sum(axis=1)
    by_rank = {rank: float(excess[its.calls.rank == rank].sum()) for rank in left}
    ordered = sorted(left, key=lambda rank: -by_rank[rank])
    nested = [tuple(sorted(ordered[:size])) for size in range(2, len(left) // 2 + 1)]
    hosts = [tuple(its) for _, its in run.ranks.groupby("host", observed=True)["rank"]]
    groups = [
        tuple(map(int, text.split(",")))
        for text in run.groups["ranks"].dropna().astype(str).unique()
    ]
    known = [
        tuple(sorted(int(r) for r in ranks))
        for ranks in (*hosts, *groups)
        if set(ranks) <= set(left)
    ]
    return list(dict.fromkeys([*nested, *known]))


def _weighed(run: Measures, who: _Who, edited: Int64, ranks: int) -> Culprit:
    measured = as_measured(run)
    edit = typically_idle if who.edit is typically_idle else typical
    alone = saved(run, measured, [edit(run, who.ranks, measured)])[:, 0]
    steps = who.steps_ns
    noise = _noise(run, who.ranks)
    # What is saved in each of many steps scatters with what is no spike, too.
    usual = (
        max(_scatter(steps.astype(np.float64)), _least_noise_ns(run))
        if steps.size >= _MANY_STEPS
        else noise
    )
    big = steps > _SPIKE * min(noise, usual)
    positive = float(steps[steps > 0].sum())
    few = bool(big.any()) and bool(steps[big].sum() >= _SPIKES_SHARE * positive)
    parts, call = excess(run, who.ranks)
    if who.edit is typically_idle:
        parts = {**parts, "compute": 0.0}
    cause = cause_of(run, who.ranks, parts)
    after = step_ns(run, [edited])
    return Culprit(
        ranks=who.ranks,
        saved_ns=int(alone.sum()),
        on_top_ns=int(steps.sum()),
        replayed_step_ns=int(np.median(after)),
        steps_ns=steps,
        noise_ns=noise,
        p_value=min(above_zero(steps.astype(np.float64)) * ranks, 1.0),
        spikes=tuple(np.flatnonzero(big).tolist()) if few else (),
        others_ns=who.others_ns,
        cause=cause,
        parts_ns=parts,
        call=call,
        waits=_waits(run, who.ranks),
        doubt=doubt_of(run, who.ranks, int(steps.sum()), cause, in_spikes=few),
    )


def _waits(run: Measures, ranks: tuple[int, ...]) -> Waits:
    """Where others waited until the last of these ranks came."""
    its = run_graph(run)
    calls, time = its.calls, its.graph.time_ns
    meets = np.flatnonzero(its.graph.kind == MEET)
    source, met = its.call_of[its.graph.source[meets]], its.graph.target[meets]
    late = np.isin(calls.rank[source], ranks) & (calls.start_ns[source] == time[met])
    last = np.full(time.size, -1)
    last[met[late]] = source[late]
    call = np.flatnonzero(~np.isin(calls.rank, ranks) & (last[its.met] >= 0))
    call = call[calls.last_ns[call] > calls.start_ns[call]]
    source = last[its.met[call]]
    kind = np.where(calls.is_p2p[source], np.where(calls.is_send[source], 2, 3), 0)
    kind = np.where(calls.from_root[call] & calls.is_root[source], 1, kind)
    return Waits(call, calls.start_ns[call], calls.last_ns[call], kind)


def _noise(run: Measures, ranks: tuple[int, ...]) -> float:
    """How much the ranks' own work beyond the typical scatters from step to step, spikes aside."""
    its, work = run_graph(run), own_work(run)
    mine = np.isin(its.calls.rank, ranks)
    steps = np.unique(its.calls.step[mine], return_inverse=True)[1]
    by_step = np.bincount(steps, weights=work.excess_ns[mine]) / len(ranks)
    return max(_scatter(by_step), _least_noise_ns(run))


def _least_noise_ns(run: Measures) -> int:
    return _NOISE_CPU_NS if run_graph(run).calls.on_cpu.any() else _NOISE_GPU_NS


def _scatter(values: Float64) -> float:
    """The standard deviation, as the median distance from the median has it."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
