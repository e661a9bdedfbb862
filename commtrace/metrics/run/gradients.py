"""Where ranks reduce gradients: after which forward pass, and between which updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, rows_by
from commtrace.comms import DDP_FORWARD, OPTIMIZER_STEP, is_update
from commtrace.intervals import inside, union
from commtrace.metrics.run.whole import has_steps, trains
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["REDUCTIONS", "Placed", "between_updates", "placed"]

_FSDP = "FSDP::root_pre_forward"
_FSDP_REDUCES = "FSDP::post_backward_reduce"
REDUCTIONS = ("all_reduce", "reduce_scatter")
_NO_RANGES = (DDP_FORWARD, "FSDP::", OPTIMIZER_STEP)


class Placed(NamedTuple):
    """Reductions, each with the forward pass before it, its range and its rank's updates so far.

    ``row`` is of ``sequences``; ``forward``, ``range`` and ``updates`` are numbers of its rank's,
    -1 where there is none before it.
    """

    row: Int64
    forward: Int64
    range: Int64
    updates: Int64

    def of(self, which: Bool) -> Placed:
        """Some of them."""
        return Placed(*(its[which] for its in self))


_NONE = Placed(*np.empty((4, 0), dtype=np.int64))


def placed(run: Measures, rows: Rows) -> Placed:
    """The reductions of gradients among ``sequences``; none where no module marks its passes.

    Those in steps, or all where only optimizers mark any: DDP and FSDP2 mark each by its forward
    pass; what FSDP2 reduces it marks. Groups that also reduce during a forward pass do not reduce
    gradients (tensor parallelism), and behind the optimizer's step it is none of that pass.
    """
    steps = run.rows("steps")
    is_forward = steps.coded("label").where((DDP_FORWARD, _FSDP).__contains__)
    rank = rows.ints("rank")
    reduces = rows.coded("op").where(REDUCTIONS.__contains__)
    if has_steps(run) or not trains(run):
        reduces &= rows.ints("step") != NULL
    if not is_forward.any() or not reduces.any():
        return _NONE
    parts = [
        _placed(rows, np.flatnonzero(reduces & (rank == one)), _of_rank(steps, one))
        for one in distinct(steps.ints("rank")[is_forward]).tolist()
    ]
    columns: Any = [np.concatenate(its) for its in zip(*parts, strict=True)]
    *its, before_update, in_forward = columns
    found = Placed(*its)
    group = codes(rows.coded("communicator"))[found.row]
    return found.of(before_update & ~np.isin(group, group[in_forward]))


def between_updates(run: Measures, rows: Rows) -> Placed:
    """The all_reduces of steps among ``sequences`` in which a program reduces gradients itself.

    Where no module marks its passes: those before some update, by how many came before them.
    """
    label = run.rows("steps").coded("label")
    ends = run.rows("steps").take(label.where(is_update))
    if not len(ends) or label.where((DDP_FORWARD, _FSDP).__contains__).any():
        return _NONE
    began, of_rank = ends.ints("start_ns"), rows_by(ends.ints("rank"))
    reduces = rows.coded("op").being("all_reduce") & (rows.ints("step") != NULL)
    reduces = np.flatnonzero(reduces)
    found = [np.empty((4, 0), dtype=np.int64)]
    for rank, at in rows_by(rows.ints("rank")[reduces]).items():
        row, update = reduces[at], np.sort(began[of_rank.get(rank, at[:0])])
        updates = np.searchsorted(update, rows.ints("order")[row])
        none = np.full(row.size, -1)
        found.append(np.stack((row, none, none, updates))[:, updates < update.size])
    return Placed(*np.concatenate(found, axis=1))


class _Steps(NamedTuple):
    """The steps and labelled ranges of one rank."""

    label: Coded
    start_ns: Int64
    end_ns: Int64

    def rows(self, mine: Bool) -> Int64:
        """Some of them, by their start."""
        rows = np.flatnonzero(mine)
        return rows[np.argsort(self.start_ns[rows], kind="stable")]

    def of(self, mine: Bool) -> tuple[Int64, Int64]:
        """When some of them began and ended, by their start."""
        rows = self.rows(mine)
        return self.start_ns[rows], self.end_ns[rows]


def _of_rank(steps: Rows, rank: int) -> _Steps:
    its = steps.take(steps.ints("rank") == rank)
    return _Steps(its.coded("label"), *its.when())


def _placed(rows: Rows, mine: Int64, steps: _Steps) -> tuple[Int64 | Bool, ...]:
    """One rank's reductions, which are before their pass's update, and which in a forward pass."""
    label = steps.label
    moment = rows.ints("order")[mine]
    if label.being(_FSDP).any():
        start, end = steps.of(label.where(lambda name: name.startswith(_FSDP_REDUCES)))
        own = inside(moment, union(start, end + 1))
    else:
        own = rows.coded("op").being("all_reduce")[mine]
    mine, moment = mine[own], moment[own]
    start, end = steps.of(label.where((DDP_FORWARD, _FSDP).__contains__))
    near = np.searchsorted(start, moment, side="right") - 1
    updated, _ = steps.of(label.where(is_update))
    updates = np.searchsorted(updated, moment)
    so_far = np.append(distinct(np.searchsorted(updated, start)), updated.size)
    by_label = bool(updated.size) and bool((np.diff(so_far) <= 1).all())  # updates in a row
    around, at = _ranges_around(start, moment, steps, by_label=by_label), near.clip(min=0)
    before_update = updates == np.searchsorted(updated, start[at])
    in_forward = (near >= 0) & (moment < end[at])
    return mine, near, around[at], updates, before_update, in_forward


def _ranges_around(starts: Int64, moments: Int64, steps: _Steps, *, by_label: bool) -> Int64:
    """The labelled range in which each forward pass starts, as a number; -1 of none.

    Of those that hold any of the moments: one of a forward pass alone tells no passes. ``by_label``
    those of one label are one, as of micro-batches that have a range each: updates part them, and
    one at a time; several in a row are of models with a pass each.
    """
    label = steps.label
    rows = steps.rows(label.where(lambda name: name != "" and not name.startswith(_NO_RANGES)))
    moments, start, end = np.sort(moments), steps.start_ns[rows], steps.end_ns[rows]
    hold = np.searchsorted(moments, start) < np.searchsorted(moments, end)
    around = _innermost(starts, start[hold], end[hold])
    codes_of = label.codes[rows][hold].astype(np.int64)
    return np.append(codes_of, -1)[around] if by_label else around


def _innermost(moments: Int64, start: Int64, end: Int64) -> Int64:
    """For each moment the range around it that began last, as a number; -1 for none."""
    found: Int64 = np.full(moments.size, -1, np.int64)
    bounds = np.searchsorted(moments, start), np.searchsorted(moments, end)
    for number, (first, last) in enumerate(zip(*(its.tolist() for its in bounds), strict=True)):
        found[first:last] = number
    return found
