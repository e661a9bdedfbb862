"""What is saved if every rank has as many bytes in all_to_alls, and works on as many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, of_transfers
from commtrace.comms import members
from commtrace.measures import measure
from commtrace.metrics.run.all_to_all_loads import IMBALANCE, Loads, in_one_memory, loads
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import wall_ns
from commtrace.rules._advice import receives

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["bytes_cost_more", "if_even", "if_even_too", "part_if_even"]


def if_even(run: Measures, uneven: Loads, min_step_share: float) -> Saving:
    """What is saved if the busiest rank of each of these had the mean."""
    its = uneven.operations
    less = its.ints("transfer_ns") * (1 - 1 / uneven.imbalance)
    at_once_ns = float(wall_ns(its.ints("last_end_ns"), less))
    return of_transfers(run, its, less, at_once_ns, min_step_share)


def if_even_too(run: Measures, culprit: Culprit, min_step_share: float) -> int:
    """What even all_to_alls save beyond the work of a culprit on what it receives more; else 0."""
    return _if_even(run, culprit.ranks, min_step_share) if receives(culprit, run) else 0


def part_if_even(run: Measures, culprit: Culprit) -> float:
    """What part of a culprit's saving is left if all receive as much: the others then work longer.

    All of it where it does not receive more than the others.
    """
    times = receives(culprit, run)
    row = int(run_graph(run).calls.row[culprit.call])
    group = members(str(matched(run).matches.coded("communicator").at(row)))
    ranks, several = len(group), len({*culprit.ranks} & {*group})
    if not times or ranks <= several:
        return 1.0
    others = max((ranks - several * times) / (ranks - several), 0.0)
    return (times - 1) / (times - others)


def bytes_cost_more(run: Measures, culprit: Culprit, min_step_share: float) -> bool:
    """Whether that is more than its work, so that uneven-all-to-all has both: else straggler."""
    return if_even_too(run, culprit, min_step_share) > culprit.on_top_ns


@measure
def _if_even(run: Measures, ranks: tuple[int, ...], min_step_share: float) -> int:
    """Of those in which some of these ranks have the most."""
    if in_one_memory(run):
        return 0
    every = loads(run)
    mine = every.take(np.isin(every.busiest, ranks) & (every.imbalance > IMBALANCE))
    return if_even(run, mine, min_step_share).left_ns
