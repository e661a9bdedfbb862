"""Whom who gets what a root sends has to wait for, besides the root; and who sends to a root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Int64, most

if TYPE_CHECKING:
    from commtrace.causal.run.calls import Calls

__all__ = ["from_root_ns", "kept_by_all", "to_root_ns"]

_SOON = 4  # times as soon as it had waited


def from_root_ns(every: Calls) -> Int64:
    """When all were there whom a call of what a root sends needs."""
    came_ns, by_root_ns = _last_before_end(every), _by_root(every)
    return np.where(_kept(every, came_ns, by_root_ns), came_ns, by_root_ns)


def to_root_ns(every: Calls) -> Int64:
    """When a call that sends to a root, and the root if it waited for that, had come.

    Gloo sends only what is asked for already, however little it is:
    https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc (``Pair::send``)
    """
    by_root_ns = _by_root(every)
    return np.where(every.on_cpu & (by_root_ns <= every.end_ns), by_root_ns, every.start_ns)


def kept_by_all(every: Calls) -> Bool:
    """Which calls of what a root sends are done only when others take it who came later.

    The root's that came before the last, if it has more to send than fits into buffers; GPUs pass
    on what they receive, so that there the others', too, or those behind the one that came late.
    """
    if not every.from_root.any():
        return every.from_root
    return _kept(every, _last_before_end(every), _by_root(every))


def _kept(every: Calls, came_ns: Int64, by_root_ns: Int64) -> Bool:
    number = every.operation
    count = int(number.max(initial=-1)) + 1
    latest = most(number, every.start_ns, count)[number]
    after = every.from_root & (every.end_ns > latest)
    root = after & every.is_root & (latest > every.start_ns)
    with_root = np.bincount(number[root], minlength=count) > 0
    received = every.from_root & ~every.is_root & ~every.on_cpu
    # A ring passes it on: https://github.com/NVIDIA/nccl/blob/master/src/device/broadcast.h
    behind_a_late_one = received & (_SOON * (every.end_ns - came_ns) < came_ns - by_root_ns)
    found: Bool = root | (after & ~every.on_cpu & with_root[number]) | behind_a_late_one
    return found


def _last_before_end(every: Calls) -> Int64:
    """When the last arrived that came to what a root sends before a call of it was done."""
    sent = np.flatnonzero(every.from_root)
    is_end = np.repeat([False, True], sent.size)
    time = np.concatenate((every.start_ns[sent], every.end_ns[sent]))
    order = np.lexsort((is_end, time, np.tile(every.operation[sent], 2)))
    came = np.maximum.accumulate(np.where(is_end[order], 0, np.arange(order.size)))
    last = np.empty_like(time)
    last[order] = time[order[came]]
    found: Int64 = every.start_ns.copy()
    found[sent] = last[sent.size :]
    return found


def _by_root(every: Calls) -> Int64:
    """When a call and its root, if there is one, had come."""
    number, of_root = every.operation, every.is_root
    count = int(number.max(initial=-1)) + 1
    root = most(number[of_root], every.start_ns[of_root], count)
    return np.maximum(every.start_ns, root[number])
