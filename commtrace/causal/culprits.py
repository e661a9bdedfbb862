"""Who delays a run: the ranks whose own work, made typical, makes its steps shorter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64
from commtrace.causal.chance import above_zero
from commtrace.causal.edits import as_measured, even, saved, step_times, typical
from commtrace.causal.host_graph import run_graph
from commtrace.causal.segments import CAUSES, others, own_parts, own_work
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Culprit", "culprits", "evened"]

_OTHERS = 0.25  # of its saving: what any other rank may save, or it is not one that delays
_CHANCE = 0.01
_SPIKE = 6  # times the noise
_SPIKES_SHARE = 0.6  # of all that is saved
_NOISE_CPU_NS = 2_000_000
_MOST = 4  # culprits, one on top of the other


@dataclass(frozen=True, eq=False)
class Culprit:
    """Ranks that together delay a run, by ``saved_ns`` alone and ``on_top_ns`` after those before.

    ``steps_ns`` is what each step is shorter without (on top), ``noise_ns`` the scatter of that.
    ``p_value`` is the chance that it is not in every step, corrected for the ranks tried;
    ``spikes`` are the steps in which it is, if it is in few. ``others_ns`` is the most that any
    other rank alone saves. ``cause`` is one of CAUSES, or None; ``parts_ns`` their excess over
    what is typical, summed; ``call`` the call before which most of it is, a row of the graph's.
    ``doubt`` says why it is not sure.
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
    cause: str | None
    parts_ns: dict[str, float]
    call: int
    doubt: str | None

    @property
    def persistent(self) -> bool:
        """Whether it delays every step, beyond chance and noise."""
        every = bool((self.steps_ns > 2 * self.noise_ns).all()) and self.steps_ns.size > 1
        return self.p_value < _CHANCE or every


@measure
def culprits(run: Measures, min_share: float) -> tuple[Culprit, ...]:
    """Who saves at least that share of the steps' time, each on top of those before."""
    its = run_graph(run)
    ranks = np.unique(its.calls.rank).tolist()
    found: list[Culprit] = []
    lag = as_measured(run)
    least = min_share * float(its.step_ns.sum())
    taken: list[int] = []
    while len(found) < min(_MOST, len(ranks) - 1):
        left = [rank for rank in ranks if rank not in taken]
        who = _next(run, left, lag, least)
        if who is None:
            break
        edited = typical(run, [*who.ranks], lag)
        taken += who.ranks
        found.append(_weighed(run, who, edited, len(ranks)))
        lag = edited
    return tuple(found)


@measure
def evened(run: Measures) -> Int64:
    """What each step is shorter if all ranks do each segment in their mean time."""
    return saved(run, as_measured(run), [even(run)])[:, 0]


@dataclass(frozen=True)
class _Who:
    ranks: tuple[int, ...]
    steps_ns: Int64
    others_ns: int
    replayed_ns: Int64


def _next(run: Measures, left: list[int], lag: Int64, least: float) -> _Who | None:
    """The fewest ranks whose typical work saves most, if it saves enough, and others do not."""
    singles = saved(run, lag, (typical(run, [rank], lag) for rank in left))
    totals = singles.sum(axis=0)
    best = int(totals.argmax())
    rest = int(np.delete(totals, best).max(initial=0))
    if totals[best] >= least and rest <= _OTHERS * totals[best]:
        return _Who((left[best],), singles[:, best], max(rest, 0), singles[:, best])
    sets = [ranks for ranks in _sets(run, left) if 1 < len(ranks) <= len(left) / 2]
    if not sets:
        return None
    shorter = saved(run, lag, (typical(run, ranks, lag) for ranks in sets))
    together = shorter.sum(axis=0)
    fits = [
        at
        for at, ranks in enumerate(sets)
        if together[at] >= least
        and _rest(left, ranks, totals) <= _OTHERS * together[at]
    ]
    if not fits:
        return None
    most = max(together[at] for at in fits)
    at = next(at for at in sorted(fits, key=lambda at: len(sets[at])) if together[at] >= 0.9 * most)
    return _Who(sets[at], shorter[:, at], max(_rest(left, sets[at], totals), 0), shorter[:, at])


def _rest(left: list[int], ranks: tuple[int, ...], totals: Int64) -> int:
    outside = [total for rank, total in zip(left, totals.tolist(), strict=True) if rank not in ranks]
    return max(outside, default=0)


def _sets(run: Measures, left: list[int]) -> list[tuple[int, ...]]:
    """Ranks of a host, of a process group; and those with the most excess, ever more of them."""
    its, work = run_graph(run), own_work(run)
    excess = np.nan_to_num(work.own_ns - work.mean_ns)
    by_rank = {rank: float(excess[its.calls.rank == rank].sum()) for rank in left}
    ordered = sorted(left, key=lambda rank: -by_rank[rank])
    nested = [tuple(sorted(ordered[:size])) for size in range(2, len(left) // 2 + 1)]
    hosts = [tuple(its) for _, its in run.ranks.groupby("host", observed=True)["rank"]]
    groups = [
        tuple(map(int, text.split(","))) for text in run.groups["ranks"].dropna().astype(str).unique()
    ]
    known = [tuple(sorted(int(r) for r in ranks)) for ranks in (*hosts, *groups) if set(ranks) <= set(left)]
    return list(dict.fromkeys([*nested, *known]))


def _weighed(run: Measures, who: _Who, edited: Int64, ranks: int) -> Culprit:
    its = run_graph(run)
    alone = saved(run, as_measured(run), [typical(run, who.ranks)])[:, 0]
    steps = who.steps_ns
    noise = _noise(run, who.ranks)
    big = steps > _SPIKE * noise
    positive = float(steps[steps > 0].sum())
    few = 0 < big.sum() and steps[big].sum() >= _SPIKES_SHARE * positive
    parts, call = _excess(run, who.ranks)
    after = np.diff(step_times(run, edited[:, None])[:, 0], prepend=its.begin_ns)
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
        cause=_cause(parts),
        parts_ns=parts,
        call=call,
        doubt=None,
    )


def _noise(run: Measures, ranks: tuple[int, ...]) -> float:
    """How much the ranks' own work beyond the typical scatters from step to step, spikes aside."""
    its, work = run_graph(run), own_work(run)
    mine = np.isin(its.calls.rank, ranks)
    excess = np.nan_to_num(work.own_ns - work.typical_ns)[mine]
    steps = np.unique(its.calls.step[mine], return_inverse=True)[1]
    by_step = np.bincount(steps, weights=excess) / len(ranks)
    scatter = 1.4826 * float(np.median(np.abs(by_step - np.median(by_step))))
    return max(scatter, _NOISE_CPU_NS)


def _excess(run: Measures, ranks: tuple[int, ...]) -> tuple[dict[str, float], int]:
    """What the ranks did more than is typical, by cause; and the call with most of it before it."""
    its, work = run_graph(run), own_work(run)
    mine = np.isin(its.calls.rank, ranks)
    parts = {}
    for cause, time in own_parts(run).items():
        usual, _ = others(work.place, time.astype(np.float64))
        parts[cause] = float(np.where(np.isnan(usual), 0, time - usual)[mine].sum())
    excess = np.where(mine, np.nan_to_num(work.own_ns - work.typical_ns), 0)
    by_place = np.bincount(its.calls.place, weights=excess)
    at = np.flatnonzero(mine & (its.calls.place == by_place.argmax()))
    return parts, int(at[excess[at].argmax()]) if at.size else -1


def _cause(parts: dict[str, float]) -> str | None:
    total = sum(max(value, 0) for value in parts.values())
    cause = max(parts, key=lambda cause: parts[cause])
    return cause if parts[cause] > total / 2 else None
