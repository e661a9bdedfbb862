"""Where ranks reduce gradients whose modules mark no passes: as their threads tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct
from commtrace.comms import is_message, is_update
from commtrace.metrics.rank.phases import own_threads
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.accumulation import repeated_in_accumulation
from commtrace.metrics.run.gradients import REDUCTIONS, Placed
from commtrace.metrics.run.group_dimensions import between_layers

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["placed_by_threads"]

_FSDP = ("FSDP::", "FullyShardedDataParallel")
_SOME_BYTES = 1_000_000  # no gradients of a model are less


def placed_by_threads(run: Measures, rows: Rows) -> Placed:
    """The reductions among ``sequences`` that backward passes call for, of ranks with optimizers.

    PyTorch runs backward on a thread of its own, while the program's waits. What that launches
    between two of them is a forward pass, if it is any kernel, or the message with which a stage of
    a pipeline begins the next micro-batch's backward. A group that all_reduces as many
    bytes from the program's own thread is none of gradients (tensor parallelism), nor is one that
    never moves much (batch norm's). Reduce_scatters count where FSDP runs, which may keep
    whole gradients: others that shard these do not. None where the first rank repeats nothing.
    """
    nothing = Placed(*(np.empty((4, 0), dtype=np.int64)))
    sharded = run.rows("steps").coded("label").where(lambda name: name.startswith(_FSDP)).any()
    reduces = rows.coded("op").where((REDUCTIONS if sharded else REDUCTIONS[:1]).__contains__)
    called = reduces & (rows.ints("step") != NULL)
    known = np.flatnonzero(called & (rows.ints("thread") != NULL))
    away = _away(run, rows.take(known))
    mine = known[away][_of_gradients(run, rows, known, away)]
    parts = [nothing]
    for rank in distinct(rows.ints("rank")[mine]).tolist():
        parts.append(_placed(run, rows, mine[rows.ints("rank")[mine] == rank], rank))
        if len(parts) == 2 and not len(repeated_in_accumulation(rows, parts[1])):
            return nothing
    columns: Any = [np.concatenate(its) for its in zip(*parts, strict=True)]
    return Placed(*columns)


def _away(run: Measures, calls: Rows) -> Bool:
    """Which calls are of a thread that no step of its rank is a range of."""
    steps = run.rows("steps")
    steps = steps.take(~steps.coded("label").known)
    ranks = np.append(steps.ints("rank"), calls.ints("rank"))
    place = codes(ranks, np.append(steps.ints("thread"), calls.ints("thread")))
    of_steps, of_calls = np.split(place, [len(steps)])
    return ~np.isin(of_calls, of_steps)


def _of_gradients(run: Measures, rows: Rows, known: Int64, away: Bool) -> Bool:
    """Which of those away are of groups that reduce gradients."""
    group, size = codes(rows.coded("communicator"))[known], rows.ints("size_bytes")[known]
    place = codes(group, size)
    both = np.isin(group, group[~away & np.isin(place, place[away])])
    much = np.isin(group, group[away & (size >= _SOME_BYTES)])
    others = between_layers(run, rows.coded("communicator").take(known))
    gradients: Bool = (much & ~both & ~others)[away]
    return gradients


def _placed(run: Measures, rows: Rows, mine: Int64, rank: int) -> Placed:
    """One rank's; of none whose optimizers do not say when they step."""
    steps, kernels = (rows_of_rank(run, table, rank) for table in ("steps", "kernels"))
    label = steps.coded("label")
    updated = np.sort(steps.ints("start_ns")[label.where(is_update)])
    mine = mine if updated.size else mine[:0]
    own = np.isin(kernels.ints("thread"), own_threads(steps))
    begins = kernels.coded("kind").being("compute") | kernels.coded("name").where(is_message)
    launched = np.sort(kernels.ints("launch_ns")[own & begins])
    moment = rows.ints("order")[mine]
    return Placed(
        mine,
        np.searchsorted(launched, moment),
        np.full(mine.size, -1),
        np.searchsorted(updated, moment),
    )
