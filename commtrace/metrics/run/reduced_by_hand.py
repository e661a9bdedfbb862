"""Where programs reduce gradients themselves, behind backward passes that no module marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, rows_by, sums
from commtrace.comms import AUTOGRAD, is_message, is_update
from commtrace.intervals import inside, union
from commtrace.metrics.rank.phases import own_threads
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.gradients import Placed
from commtrace.metrics.run.group_dimensions import between_layers

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["placed_by_hand"]

_SOME_BYTES = 1_000_000  # in a step: no gradients of a model are less
_A_LITTLE = 3  # operators, or kernels: a mean's division, a copy back


class _Work(NamedTuple):
    """When a rank's work was launched, and done if that is known; messages are none, but part it.

    In the order of ``start_ns``; ``threads`` are the program's own, None where it is all on one.
    """

    start_ns: Int64
    end_ns: Int64
    backward: Bool
    message: Bool
    threads: Int64 | None

    def of(self, which: Bool | Int64) -> _Work:
        """Some of it."""
        times = self.start_ns[which], self.end_ns[which]
        return _Work(*times, self.backward[which], self.message[which], self.threads)


def placed_by_hand(run: Measures, rows: Rows) -> Placed:
    """The all_reduces among ``sequences`` that programs call right behind a backward pass.

    On a GPU PyTorch runs backward on a thread of its own, on a CPU its operators are named. Passes
    are parted by what is computed forward, and by messages, with which a stage of a pipeline begins
    the next micro-batch's. Not in groups that also reduce elsewhere (tensor parallelism), or little
    (a metric), nor what an optimizer's step encloses, as a closure, or none follows; of ranks whose
    optimizers say when they step, one at a time: several in a row are of models with a pass each.
    """
    reduces = rows.coded("op").being("all_reduce") & (rows.ints("step") != NULL)
    reduces &= ~between_layers(run, rows.coded("communicator"))
    at = np.flatnonzero(reduces)
    parts: list[tuple[Any, ...]] = [
        _of_rank(run, rows, at[mine], rank)
        for (rank,), mine in rows_by(rows.ints("rank")[at]).items()
    ]
    if not parts:
        return Placed(*np.empty((4, 0), dtype=np.int64))
    *its, behind = (np.concatenate(column) for column in zip(*parts, strict=True))
    found = Placed(*its)
    group = codes(rows.coded("communicator"))[found.row]
    rank, step, size = (rows.ints(name)[found.row] for name in ("rank", "step", "size_bytes"))
    cell = codes(group, rank, step)
    much = sums(cell, size.clip(min=0), int(cell.max(initial=-1)) + 1)[cell] >= _SOME_BYTES
    return found.of(much & ~np.isin(group, group[~behind]))


def _of_rank(run: Measures, rows: Rows, mine: Int64, rank: int) -> tuple[Int64 | Bool, ...]:
    """A rank's reductions as in ``Placed``, and which are behind a backward pass.

    As is one that is behind such a one, with no more than a little arithmetic in between.
    """
    mine = mine[np.argsort(rows.ints("order")[mine], kind="stable")]
    steps = rows_of_rank(run, "steps", rank)
    if not steps.coded("label").where(is_update).any():
        return (*np.empty((4, 0), dtype=np.int64), np.empty(0, np.bool_))
    work = _work(run, rank)
    mine = mine if work.threads is None else mine[np.isin(rows.ints("thread")[mine], work.threads)]
    updates = steps.take(steps.coded("label").where(is_update)).when()
    updated, order = np.sort(updates[0]), rows.ints("order")[mine]
    mine = mine[~inside(order, union(*updates)) & (order <= updated.max(initial=-1))]
    so_far = np.searchsorted(updated, rows.ints("order")[mine])
    in_a_row = (np.diff(np.append(so_far, updated.size)) > 1).any()
    computes = work.of(~work.message)
    mine = mine[:0] if in_a_row or not computes.start_ns.size else mine
    moment, none = rows.ints("order")[mine], np.full(mine.size, -1)
    before = np.append(False, work.backward[:-1])
    passes = np.searchsorted(work.start_ns[work.backward & ~before], moment, side="right") - 1
    last = np.searchsorted(computes.start_ns, moment) - 1
    behind = (last >= 0) & computes.backward[last] & (moment >= computes.end_ns[last])
    begins = (np.diff(last, prepend=-1) > _A_LITTLE) | (np.diff(passes, prepend=-1) != 0)
    behind = behind[np.maximum.accumulate(np.where(begins, np.arange(mine.size), 0))] | behind
    return mine, passes, none, np.searchsorted(updated, moment), behind


def _work(run: Measures, rank: int) -> _Work:
    """A rank's kernels, where they ran on a GPU; else its operators."""
    kernels = rows_of_rank(run, "kernels", rank)
    if len(kernels):
        steps = rows_of_rank(run, "steps", rank)
        name, start = kernels.coded("name"), kernels.ints("launch_ns")
        threads = own_threads(steps)
        own = np.isin(kernels.ints("thread"), threads)
        backward, end = ~own & (kernels.ints("thread") != NULL), start
    else:
        kernels, threads = rows_of_rank(run, "ops", rank), None
        name, (start, end) = kernels.coded("name"), kernels.when()
        backward = name.where(lambda its: its.startswith(AUTOGRAD))
    message = name.where(is_message)
    mine = np.flatnonzero((kernels.coded("kind").being("compute") | message) & (start != NULL))
    mine = mine[np.argsort(start[mine], kind="stable")]
    return _Work(start, end, backward & ~message, message, threads).of(mine)
