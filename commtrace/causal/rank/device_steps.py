"""The same waits in every step: those that one step shows hold in the others, or were chance."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, first_rows, least, nth, numbered
from commtrace.causal.rank.device_waits import Pairs
from commtrace.causal.rank.device_work import ROUNDING_NS, DeviceWork, Numbered

__all__ = ["in_other_steps"]

_CONTRADICTED = 0.1  # of the steps: some step may do what the others do not


def in_other_steps(work: DeviceWork, pairs: Pairs) -> tuple[Pairs, Pairs]:
    """The inferred waits without those that other steps contradict; and theirs elsewhere.

    A place is the n-th work on a stream in a step, or the n-th of a name. A wait of one place for
    another is contradicted by a step in which the one starts before the other ends. The others
    have it, too, though it did not hold them up.
    """
    ended, started = pairs
    known = (work.step[ended] != NULL) & (work.step[started] != NULL)
    steps = Numbered.of(work.step[work.step != NULL])
    count = steps.values.size
    step, place = steps.number(work.step), _places(work)
    keys = place * count + step
    order = np.flatnonzero(step >= 0)
    order = order[np.argsort(keys[order])]
    at = Numbered(keys[order])

    def row(place: Int64, step: Int64) -> Int64:
        there = at.number(np.where((step >= 0) & (step < count), place * count + step, -1))
        return np.append(order, -1)[there]

    apart = step[started] - step[ended]
    wait, of = np.unique(
        np.stack((place[ended], place[started], apart))[:, known], axis=1, return_inverse=True
    )
    shape = (wait.shape[1], count)
    every = np.broadcast_to(np.arange(count), shape)
    its_start = row(np.broadcast_to(wait[1][:, None], shape), every)
    its_end = row(np.broadcast_to(wait[0][:, None], shape), every - wait[2][:, None])
    both = (its_start >= 0) & (its_end >= 0)
    ends_ns, starts_ns = np.append(work.end_ns, 0)[its_end], np.append(work.start_ns, 0)[its_start]
    follows = both & (ends_ns - ROUNDING_NS <= starts_ns)
    holds: Bool = (both & ~follows).sum(axis=1) <= _CONTRADICTED * both.sum(axis=1)
    kept = ~known
    kept[known] = holds[of.reshape(-1)]
    latent = follows & holds[:, None]
    return (ended[kept], started[kept]), (its_end[latent], its_start[latent])


def _places(work: DeviceWork) -> Int64:
    """A number for each stream, and which of its works in the step it is.

    In steps that give the stream more or less than most do, that is by name, from the last
    communication on: texts may have more or fewer tokens before it. Of steps alike, names may
    differ: for other numbers of tokens, a library takes another kernel.
    """
    name = numbered(work.name, work.stream, _communicated(work))
    cell = numbered(work.step, work.stream)
    alike = _as_in_most(work.stream, cell)
    what = numbered(alike.astype(np.int64), np.where(alike, work.stream, name))
    return numbered(what, nth(numbered(work.step, what)))


def _communicated(work: DeviceWork) -> Int64:
    """How much of its step's communication was launched before each work."""
    launched = np.sort(work.launch_ns[work.communicates])
    step, before = numbered(work.step), np.searchsorted(launched, work.launch_ns)
    return before - least(step, before, int(step.max(initial=-1)) + 1)[step]


def _as_in_most(stream: Int64, cell: Int64) -> Bool:
    """Which works are in steps that have as many on its stream as most; a cell is both of these."""
    first, count = first_rows(cell), np.bincount(cell)
    many = numbered(stream[first], count)
    of_stream = numbered(stream[first])
    most = 2 * np.bincount(many)[many] > np.bincount(of_stream)[of_stream]
    return np.asarray(most[cell])
