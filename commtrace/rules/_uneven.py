"""What is saved if every rank has as many bytes in all_to_alls, and works on as many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, most, numbered
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.edits.run_edits import scaled
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.builder import DEVICES
from commtrace.causal.run.replayable import replayable
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, of_transfers, saving, taking_less
from commtrace.causal.work.segments import own_work
from commtrace.causal.work.usual import mean_of
from commtrace.comms import members
from commtrace.measures import measure
from commtrace.metrics.run.all_to_all_loads import IMBALANCE, Loads, in_one_memory, loads
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import wall_ns
from commtrace.rules._advice import receives

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["EvenSplit", "even_split", "if_even", "if_even_with_work", "works_on_bytes"]

_FEW = 8  # calls, of which nothing can be said
_GOES_WITH = 0.8  # the correlation of bytes and work


def if_even(run: Measures, uneven: Loads, min_step_share: float) -> Saving:
    """What is saved if the busiest rank of each of these had the mean."""
    its, less = uneven.operations, uneven.less_ns
    at_once_ns = float(wall_ns(its.ints("last_end_ns"), less))
    return of_transfers(run, its, less, at_once_ns, min_step_share)


def if_even_with_work(run: Measures, uneven: Loads, min_step_share: float) -> Saving | None:
    """The same, with what GPUs work on their bytes in its mean; None if it hangs on other things.

    It does not where a rank works longer before an all_to_all the more the one before brought it.
    None, too, where no replay tells what work costs.
    """
    if not replayable(run) or not (on_bytes := works_on_bytes(run)).any():
        return None
    work, faster = own_work(run), taking_less(run, uneven.operations, uneven.less_ns)

    def edit(lag_ns: Lags) -> Lags:
        mended = faster(lag_ns)
        wanted = work.mean_ns[on_bytes]
        return changed(mended, scaled(run, work, wanted, on_bytes, mended, DEVICES))

    gain = saving(run, edit, 0.0, min_step_share)
    return None if gain.why else gain


@measure
def works_on_bytes(run: Measures) -> Bool:
    """The calls of the graph before which GPUs work on what an all_to_all brought them.

    Behind those that bring some far more than others, if the work goes with it; else none.
    """
    calls, work = run_graph(run).calls, own_work(run)
    at = np.flatnonzero(run.rows("collectives").coded("op").being("all_to_all")[calls.row])
    received = run.rows("collectives").ints("out_bytes")[calls.row[at]]
    place, rank = numbered(calls.operation[at].astype(np.int64)), calls.rank[at]
    mean = mean_of(received, place).clip(min=1)
    largest = most(place, received, int(place.max(initial=-1)) + 1)[place]
    did = work.own_ns[at, DEVICES] / work.mean_ns[at, DEVICES].clip(min=1)
    uneven = (received != NULL) & (largest > IMBALANCE * mean)
    behind = np.flatnonzero((rank[1:] == rank[:-1]) & uneven[:-1])
    pair = (received / mean)[behind], did[behind + 1]
    found = np.zeros(calls.rank.size, np.bool_)
    if behind.size >= _FEW and all(its.std() for its in pair):
        found[at[behind + 1]] = float(np.corrcoef(*pair)[0, 1]) >= _GOES_WITH
    return found


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
