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
    """Whether these are stages that make more calls than others, and take no longer besides.

    As those between the ends of a pipeline do, which have two neighbours: without as many of the
    shortest of their hosts' work as they call more they take no longer. Not if their devices
    compute longer: then their hosts have more to launch.
    """
    others = other_stages(run, ranks)
    if not others:
        return False
    calls, own_ns = run_graph(run).calls.rank, own_work(run).own_ns
    mine, rest = ([own_ns[calls == rank] for rank in its] for its in (ranks, others))
    most = max(map(len, rest))
    if not all(map(len, rest)) or min(map(len, mine)) < _ALIKE * most:
        return False
    host = [np.sort(its[:, HOSTS])[-most:].sum() for its in mine]
    theirs = [its[:, HOSTS].sum() for its in rest]
    computes, compute = ([its[:, DEVICES].sum() for its in some] for some in (mine, rest))
    return _as_long(host, theirs) and _as_long(computes, compute)


def _as_long(mine: list[float], rest: list[float]) -> bool:
    return bool(np.mean(mine) <= _ALIKE * np.mean(rest))
