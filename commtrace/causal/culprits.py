"""Who delays a run: the ranks whose own work, made typical, makes its steps shorter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.builder import MEET
from commtrace.causal.causes import cause_of, doubt_of, excess
from commtrace.causal.chance import above_zero
from commtrace.causal.edits import as_measured, even, saved, step_ns, typical, typically_idle
from commtrace.causal.run_graph import run_graph
from commtrace.causal.segments import own_work
from commtrace.causal.suspects import Suspects, suspects
from commtrace.diagnosis import CannotLook, Cause
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["AWAITED", "Culprit", "Culprits", "Waits", "culprits", "evened", "modelled"]

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
        who = suspects(run, left, lag, least)
        if who is None:
            break
        culprit = _weighed(run, who, len(ranks))
        if not (culprit.persistent or culprit.spikes):
            break
        found.append(culprit)
        taken += who.ranks
        lag = who.lag_ns
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


def _weighed(run: Measures, who: Suspects, ranks: int) -> Culprit:
    measured = as_measured(run)
    edit = typically_idle if who.only_idle else typical
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
    if who.only_idle:
        parts = {**parts, "compute": 0.0}
    cause = cause_of(run, who.ranks, parts)
    after = step_ns(run, [who.lag_ns])
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
