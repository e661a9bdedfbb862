"""Whether ranks take turns being late, in each step or in a few, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Int64, codes, distinct
from commtrace.causal.blame.culprits import culprits, evened, stalls_in_turn, unpaused
from commtrace.causal.blame.search import least_noise_ns
from commtrace.causal.chance import above_zero
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.inputs import Inputs, uneven_inputs
from commtrace.causal.work.segments import own_parts
from commtrace.causal.work.usual import mean_of
from commtrace.diagnosis import HOST_CAUSES, Cause
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_rank
from commtrace.metrics.run.whole import has_steps, whole, worth_reporting
from commtrace.quantiles import medians

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["CHANCE_IF_COUNTED", "Turns", "cause", "most_kernels", "turns", "waiting"]

CHANCE_IF_COUNTED = 0.15
"""Of what larger inputs, or the garbage that a recording shows, explain: less likely is none."""
_CHANCE = 0.01
_CHANCE_IF_PAUSED = 0.05  # of hosts that launch nothing: GPUs' work varies little
_PAUSE_NS = 1_000_000
_MOST_OF = 0.75  # of what is saved without pauses, all as the mean
_MORE = 1.2  # times as many kernels as is usual
_ONE = 0.8  # of all waits: those for one rank are none for ranks by turns


class Turns(NamedTuple):
    """That ranks take turns: steps would be ``steps_ns`` shorter if all did as their mean.

    Or if none paused. In every step, or in the ``stalls``; ``of_pauses`` of GPUs' hosts, or as who
    is late works on ``uneven`` inputs. ``p_value`` is the chance that it is not in every step,
    ``max_chance`` the most that it may be.
    """

    steps_ns: Int64
    stalls: tuple[int, ...]
    of_pauses: bool
    uneven: Inputs | None
    p_value: float
    max_chance: float


def turns(run: Measures, min_step_share: float) -> Turns | None:
    """How ranks take turns being late, if that costs enough, beyond chance."""
    steps = evened(run, min_step_share)
    if not waiting(run).size or not worth_reporting(int(steps.sum()), run, min_step_share):
        return None
    alone = not culprits(run, min_step_share).found
    if alone and (_mostly_one(run) or _mostly_few(run, steps, min_step_share)):
        return None
    pauses = cause(run) in HOST_CAUSES and not run_graph(run).calls.on_cpu.any()
    tested = steps
    if pauses:
        without = unpaused(run, min_step_share)
        # Far more is mostly what all do in some steps: in that no turns show.
        tested = without if steps.sum() < without.sum() <= steps.sum() / _MOST_OF else steps
        steps = max(steps, without, key=np.sum)
    p_value = above_zero(tested.astype(np.float64))
    chance = _CHANCE_IF_PAUSED if pauses and tested.max() >= _PAUSE_NS else _CHANCE
    every = p_value <= chance or _all_worth_it(run, tested, min_step_share)
    stalls = () if every else stalls_in_turn(run, min_step_share)
    maybe = every or (not stalls and p_value <= CHANCE_IF_COUNTED)
    uneven = uneven_inputs(run) if maybe else None
    if not (every or stalls or uneven):
        return None
    return Turns(steps, stalls, pauses, uneven, p_value, CHANCE_IF_COUNTED if uneven else chance)


def _all_worth_it(run: Measures, steps_ns: Int64, min_step_share: float) -> bool:
    """Whether each of several steps is worth it, beyond noise: few that differ are no chance."""
    worth_ns = min_step_share * whole(run).time_ns / steps_ns.size
    return steps_ns.size > 1 and bool((steps_ns > max(2 * least_noise_ns(run), worth_ns)).all())


def _mostly_one(run: Measures) -> bool:
    """Whether others wait for hardly anybody but one rank, of their time in the mean step."""
    calls = run_graph(run).calls
    start_ns, last_ns, count = calls.start_ns, calls.last_ns, calls.rank.size
    came = codes(np.tile(calls.operation, 2), np.concatenate((start_ns, last_ns)))
    who = np.full(2 * count, -1)
    who[came[:count]] = calls.rank
    culprit = who[came[count:]]
    waited = (last_ns > start_ns) & (culprit >= 0)
    if has_steps(run):
        waited &= calls.step != NULL
    step, culprit = codes(calls.step[waited]), culprit[waited]
    if not step.size:
        return False
    caused = np.zeros((step.max() + 1, culprit.max() + 1))
    np.add.at(caused, (step, culprit), (last_ns - start_ns)[waited])
    return bool((caused / caused.sum(axis=1, keepdims=True)).mean(axis=0).max() > _ONE)


def _mostly_few(run: Measures, steps_ns: Int64, min_step_share: float) -> bool:
    """Whether most of ``steps_ns`` is by ranks that are late in every step, each for too little."""
    late = culprits(run, min_step_share / 2).found
    if not late or not all(its.in_every for its in late):
        return False
    return bool(2 * evened(run, min_step_share / 2).sum() < steps_ns.sum())


def waiting(run: Measures) -> Int64:
    """The calls of the run's graph that wait for others."""
    calls = run_graph(run).calls
    return np.flatnonzero(calls.last_ns > calls.start_ns)


def most_kernels(run: Measures) -> tuple[int, int] | None:
    """The most that a rank computes in a step, and what is usual in that, as ranks take turns.

    The step in which the two differ most. None if nobody computes many more in most of the steps,
    or always the same.
    """
    steps = run_graph(run).steps
    counts = np.stack([_kernels(run, rank, steps) for rank in ranks_of(run, "kernels")])
    usual, most = medians(counts, axis=0), counts.max(axis=0)
    more = most >= _MORE * np.maximum(usual, 1)
    if 2 * more.sum() <= more.size or distinct(counts.argmax(axis=0)[more]).size == 1:
        return None
    step = int((most - usual).argmax())
    return int(most[step]), int(usual[step])


def _kernels(run: Measures, rank: int, steps: tuple[int, ...]) -> Int64:
    """How many a rank computes in each of these."""
    its = rows_of_rank(run, "kernels", rank)
    step = its.ints("step")[its.coded("kind").being("compute")]
    at = np.searchsorted(steps, step)
    known = np.append(steps, NULL)[at] == step
    return np.bincount(at[known], minlength=len(steps)).astype(np.int64)


def cause(run: Measures) -> Cause | None:
    """What most of the work beyond the ranks' mean at each place is; None if nothing is."""
    place, more = run_graph(run).calls.in_place, {}
    for its, time in own_parts(run).items():
        beyond = np.maximum(time - mean_of(time, place), 0) if time.any() else time
        more[its] = float(beyond.sum())
    most = max(more, key=lambda its: more[its])
    return most if more[most] > sum(more.values()) / 2 else None
