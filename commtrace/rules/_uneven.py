"""What is saved if every rank has as many bytes in all_to_alls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.causal.savings import Saving, of_transfers
from commtrace.metrics.run.all_to_all_loads import Loads, in_one_memory, loads

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["IMBALANCE", "if_even", "if_even_too"]

IMBALANCE = 1.2  # times the mean: less is even


def if_even(run: Measures, uneven: Loads, min_step_share: float) -> Saving:
    """What is saved if the busiest rank of each of these had the mean."""
    less = uneven.operations.ints("transfer_ns") * (1 - 1 / uneven.imbalance)
    return of_transfers(run, uneven.operations, less, float(less.sum()), min_step_share)


def if_even_too(run: Measures, ranks: tuple[int, ...], min_step_share: float) -> int:
    """What those save in which some of these ranks have the most, beyond what their work does."""
    if in_one_memory(run):
        return 0
    every = loads(run)
    mine = every.take(np.isin(every.busiest, ranks) & (every.imbalance > IMBALANCE))
    gain = if_even(run, mine, min_step_share)
    return gain.cost_ns if gain.on_top_ns is None else gain.on_top_ns
