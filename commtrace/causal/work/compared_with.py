"""Whom ranks' work is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int64, distinct
from commtrace.causal.run.run_graph import run_graph
from commtrace.metrics.run.stages import other_stages

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ComparedWith", "compared_with"]


class ComparedWith(NamedTuple):
    """The ranks that are ``late``, the others, and the calls before which their work is compared.

    ``whole_steps`` says that these are all of a step: stages of a pipeline make unlike calls, or
    the same in another pass.
    """

    late: Int64
    others: Int64
    which: Bool
    whole_steps: bool


def compared_with(
    run: Measures, ranks: tuple[int, ...], call: int, *, everywhere: bool = False
) -> ComparedWith:
    """Others that come to a call's place; where the ranks are a pipeline's stage, other stages.

    At that place, or ``everywhere`` they come to.
    """
    calls = run_graph(run).calls
    if others := other_stages(run, ranks):
        which = np.isin(calls.rank, (*ranks, *others))
    else:
        which = calls.place == calls.place[call]
    there = distinct(calls.rank[which])
    if everywhere:
        which = np.isin(calls.rank, there)
    late = np.isin(there, ranks)
    return ComparedWith(there[late], there[~late], which, bool(others))
