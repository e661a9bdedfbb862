"""Stages of a pipeline whose hosts do more since they send and receive more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import DEVICES, HOSTS, own_work
from commtrace.metrics.run.stages import other_stages

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["only_calls_more"]

_ALIKE = 1.25  # times as many, or as long


def only_calls_more(run: Measures, ranks: tuple[int, ...]) -> bool:
    """Whether these are stages that make more calls than others, and take no longer for each.

    As those between the ends of a pipeline do, which have two neighbours. Not if their devices
    compute longer: then their hosts have more to launch.
    """
    others = other_stages(run, ranks)
    if not others:
        return False
    calls, own_ns = run_graph(run).calls.rank, own_work(run).own_ns
    mine, rest = list(ranks), others
    last = max(*mine, *rest) + 1
    count = np.bincount(calls, minlength=last)
    host, device = (np.bincount(calls, own_ns[:, of], last) for of in (HOSTS, DEVICES))
    if not count[rest].all() or count[mine].min() < _ALIKE * count[rest].max():
        return False
    each, theirs = (host[its].sum() / count[its].sum() for its in (mine, rest))
    computes, compute = (device[its].mean() for its in (mine, rest))
    return bool(each <= _ALIKE * theirs and computes <= _ALIKE * compute)
