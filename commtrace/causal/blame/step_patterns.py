"""In which steps of a run ranks delay it by more than chance: in every one, few, or since one.

Times are arrays by step, in ns: what each step is shorter without the ranks' delay, and what these
do ``more`` than is typical.
"""

from __future__ import annotations

from math import comb

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.quantiles import median

__all__ = [
    "CHANCE",
    "CHANCE_IF_COUNTED",
    "MANY_STEPS",
    "SPIKE",
    "SPIKE_IF_COUNTED",
    "in_every",
    "in_few",
    "in_most",
    "scatter",
    "since",
    "steady",
]

CHANCE = 0.01
"""Less likely is no chance."""
CHANCE_IF_COUNTED = 0.05
"""``CHANCE`` of ranks that run what others do not, or on more."""
SPIKE = 6
"""Times the noise: a stall."""
SPIKE_IF_COUNTED = 2
"""Times the noise: a stall of ranks that run there what others do not."""
MANY_STEPS = 5
"""Of fewer little is known of how they scatter."""
_SPIKES_SHARE = 0.6  # of all that is saved
_SETS_IN = 3  # steps before it does, and since then
_NEARLY_ALL = 0.9  # of all that is saved
_STEADY = 0.5  # of the median
_ALIKE = 2  # times as long
_TURN = 0.5  # of a stall: so much less than the others do, and another stalls


def in_every(
    steps: Int64, more: Float64, noise_ns: float, least_noise_ns: int, *, unlikely: bool
) -> bool:
    """Whether they delay every step; few may agree by chance on what is no more than noise.

    ``unlikely`` says that chance does not explain it, where not all steps are far above the noise.

    In a step in which they do less than is typical they delay nobody: it begins late, since they
    did more in the one before, and the next few may be another's.
    """
    if more.size < MANY_STEPS and bool((more <= 0).any()):
        return False
    if steps.size > 1 and bool((steps > 2 * noise_ns).all()):
        return True
    if not steps.size:
        return False
    enough = steps.size >= MANY_STEPS or median(steps) > least_noise_ns
    of_one = steps.size > 1 and steps.max() >= _NEARLY_ALL * steps[steps > 0].sum()
    return unlikely and enough and not of_one


def in_few(
    steps: Int64, more: Float64, least_noise_ns: int, after_ns: Int64, spike: int = SPIKE
) -> tuple[int, ...]:
    """The steps that hold most of what is saved, far above the others' noise.

    At most half of them hold it; those that are like these are told with them.

    Where all ranks' work scatters somebody is last in some steps by chance. Of few steps all but
    one, if they are longer by more than a step, and no other rank stalls in the one that is left.
    ``after_ns`` is how long each step is without the delay.
    """
    order, ordered = np.argsort(-steps, kind="stable"), np.sort(more)
    size = min(steps.size, more.size)
    few = more.size < MANY_STEPS
    for count in range(max(size - 1 if few else size // 2, 1), 0, -1):
        big = steps[order[:count]]
        # Few values say little of how they scatter; what is longer than a step is none of that.
        usual_ns = median(after_ns[order[count % order.size :]])
        apart = not few or big.min() > usual_ns
        in_turn = ordered[0] < -_TURN * big.min()
        if count > max(size // 2, 1) and (in_turn or not apart):
            continue
        rest = ordered[: more.size - count] if apart else ordered
        noise = max(scatter(rest), least_noise_ns)
        if big.min() > spike * noise and big.sum() >= _SPIKES_SHARE * steps[steps > 0].sum():
            alike = np.flatnonzero(steps > max(spike * noise, big.min() / _ALIKE))
            return tuple((alike if alike.size < steps.size else np.sort(order[:count])).tolist())
    return ()


def in_most(steps: Int64, least_noise_ns: int, ranks: int) -> tuple[int, ...]:
    """The steps, more than half but not all, that they delay by alike, far above the others.

    Too many for one of so many ranks that take turns, or are last by chance.
    """
    order = np.argsort(-steps, kind="stable")
    for count in range(steps.size - 1, steps.size // 2, -1):
        big, rest = np.split(steps[order].astype(np.float64), [count])
        noise = max(scatter(big), scatter(rest), least_noise_ns)
        apart = big[-1] - rest[0] > SPIKE * noise and big[0] <= _ALIKE * big[-1]
        if apart and big.sum() >= _NEARLY_ALL * steps[steps > 0].sum():
            likely = ranks * _at_least(count, steps.size, 1 / ranks)
            return () if likely >= CHANCE else tuple(sorted(order[:count].tolist()))
    return ()


def _at_least(count: int, of: int, chance: float) -> float:
    """How likely what has this chance each time is so often at least."""
    each = range(count, of + 1)
    return sum(comb(of, some) * chance**some * (1 - chance) ** (of - some) for some in each)


def since(steps: Int64, least_noise_ns: int) -> tuple[int, ...]:
    """The last steps, if what they save sets in, far above the noise of the first ones."""
    noise = max(scatter(steps[:_SETS_IN].astype(np.float64)), least_noise_ns)
    low = np.flatnonzero(steps <= SPIKE * noise)
    first = int(low[-1]) + 1 if low.size else 0
    if min(first, steps.size - first) < _SETS_IN:
        return ()
    most = steps[first:].sum() >= _NEARLY_ALL * steps[steps > 0].sum()
    return tuple(range(first, steps.size)) if most else ()


def steady(more: Float64, least_noise_ns: int) -> bool:
    """Whether they do more in each of several steps, beyond noise, and about as much in all."""
    least = max(2.0 * least_noise_ns, _STEADY * median(more)) if more.size else 0.0
    return more.size > 1 and bool((more > least).all())


def scatter(values: Float64) -> float:
    """The standard deviation, as the median distance from the median has it; 0 of nothing."""
    if not values.size:
        return 0.0
    return 1.4826 * median(np.abs(values - median(values)))
