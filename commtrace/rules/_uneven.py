"""What is saved if every rank has as many bytes in all_to_alls, and works on as many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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

__all__ = ["EvenSplit", "even_split", "if_even"]


def if_even(run: Measures, uneven: Loads, min_step_share: float) -> Saving:
    """What is saved if the busiest rank of each of these had the mean."""
    its = uneven.operations
    less = its.ints("transfer_ns") * (1 - 1 / uneven.imbalance)
    at_once_ns = float(wall_ns(its.ints("last_end_ns"), less))
    return of_transfers(run, its, less, at_once_ns, min_step_share)


class EvenSplit(NamedTuple):
    """What is saved if a culprit receives no more in all_to_alls than the others.

    That ``part`` of what its work costs, as the others then work longer, and ``bytes_ns`` besides.
    ``mostly_bytes``: these are more than its work, so that uneven-all-to-all has both, else
    straggler.
    """

    part: float
    bytes_ns: int
    mostly_bytes: bool


def even_split(run: Measures, culprit: Culprit, min_step_share: float) -> EvenSplit:
    """All of its work, and no bytes, where it does not receive more than the others."""
    times = receives(culprit, run)
    if not times:
        return EvenSplit(1.0, 0, mostly_bytes=False)
    bytes_ns = _if_even(run, culprit.ranks, min_step_share)
    return EvenSplit(_part(run, culprit, times), bytes_ns, bytes_ns > culprit.on_top_ns)


def _part(run: Measures, culprit: Culprit, times: float) -> float:
    """What part of its saving is left where it receives so many times as much as the mean."""
    row = int(run_graph(run).calls.row[culprit.call])
    group = members(matched(run).matches.coded("communicator").at(row))
    ranks, several = len(group), len({*culprit.ranks} & {*group})
    if ranks <= several:
        return 1.0
    others = max((ranks - several * times) / (ranks - several), 0.0)
    return (times - 1) / (times - others)


@measure
def _if_even(run: Measures, ranks: tuple[int, ...], min_step_share: float) -> int:
    """Of those in which some of these ranks have the most."""
    if in_one_memory(run):
        return 0
    every = loads(run)
    mine = every.take(np.isin(every.busiest, ranks) & (every.imbalance > IMBALANCE))
    return if_even(run, mine, min_step_share).left_ns
