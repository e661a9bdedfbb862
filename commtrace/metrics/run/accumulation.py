"""Reductions of gradients that later micro-batches add to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, first_rows, most, sums
from commtrace.comms import DDP_FORWARD
from commtrace.intervals import inside, union
from commtrace.metrics.run.sequences import SEQUENCES
from commtrace.table import Coded, Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["REPEATED", "repeated_in_accumulation"]

_FSDP = "FSDP::root_pre_forward"
_FSDP_REDUCES = "FSDP::post_backward_reduce"
_OPTIMIZER = "Optimizer.step#"
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_NO_RANGES = (DDP_FORWARD, "FSDP::", _OPTIMIZER)

REPEATED = Table(
    "repeated_in_accumulation",
    "one reduction of a micro-batch that the last of its accumulation makes needless",
    (
        *SEQUENCES.columns,
        Column("micro_batches", "int64", "Those of its accumulation that reduce."),
    ),
)


def repeated_in_accumulation(run: Measures, rows: Rows) -> Rows:
    """Of ``sequences`` the reductions that the last of their accumulation makes needless: REPEATED.

    One accumulation is the micro-batches of one step, and of one labelled range in it, with
    no optimizer's step between them; DDP and FSDP2 mark each by its forward pass. Needless is what
    a micro-batch reduces that is not the last, if the last reduces the same sizes. Groups
    that also reduce during a forward pass do not reduce gradients (tensor parallelism); what
    FSDP2 reduces it marks.
    """
    steps = run.rows("steps")
    is_forward = steps.coded("label").where((DDP_FORWARD, _FSDP).__contains__)
    rank, step = rows.ints("rank"), rows.ints("step")
    reduces = rows.coded("op").where(_REDUCTIONS.__contains__) & (step != NULL)
    if not is_forward.any() or not reduces.any():
        return REPEATED.rows()
    parts = [
        _placed(rows, np.flatnonzero(reduces & (rank == one)), _of_rank(steps, one))
        for one in np.unique(steps.ints("rank")[is_forward]).tolist()
    ]
    placed = _joined(parts)
    group = codes(rows.coded("communicator"))[placed.row]
    parallel = np.isin(group, group[placed.in_forward])
    # Behind the optimizer's step it is no gradient of that pass.
    mine = ~parallel & (placed.forward >= 0) & placed.before_update
    row, forward, group = placed.row[mine], placed.forward[mine], group[mine]
    whole = codes(rank[row], group, step[row], placed.range[mine], placed.updates[mine])
    latest = most(whole, forward, whole.max(initial=-1) + 1)
    last = forward == latest[whole]
    if last.all():
        return REPEATED.rows()
    batch = codes(whole, forward)
    size = sums(batch, rows.ints("size_bytes")[row], int(batch.max()) + 1)[batch]
    of_last = np.zeros(latest.size, dtype=np.int64)
    np.maximum.at(of_last, whole[last], size[last])
    needless = ~last & (size == of_last[whole])
    count = np.bincount(whole[first_rows(batch)])
    found = rows.take(row[needless])
    return REPEATED.rows({**found.columns, "micro_batches": count[whole[needless]]})


class _Placed(NamedTuple):
    """Reductions, each with the forward pass before it, its range and its rank's updates so far."""

    row: Int64
    forward: Int64
    range: Int64
    updates: Int64
    before_update: Bool
    in_forward: Bool


def _joined(parts: list[_Placed]) -> _Placed:
    columns: Any = (np.concatenate(its) for its in zip(*parts, strict=True))
    return _Placed(*columns)


class _Steps(NamedTuple):
    """The steps and labelled ranges of one rank."""

    label: Coded
    start_ns: Int64
    end_ns: Int64

    def of(self, mine: Bool) -> tuple[Int64, Int64]:
        """When some of them began and ended, by their start."""
        rows = np.flatnonzero(mine)
        rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
        return self.start_ns[rows], self.end_ns[rows]


def _of_rank(steps: Rows, rank: int) -> _Steps:
    its = steps.take(steps.ints("rank") == rank)
    start_ns = its.ints("start_ns")
    return _Steps(its.coded("label"), start_ns, start_ns + its.ints("duration_ns"))


def _placed(rows: Rows, mine: Int64, steps: _Steps) -> _Placed:
    """One rank's reductions."""
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
    updated, _ = steps.of(label.where(lambda name: name.startswith(_OPTIMIZER)))
    updates = np.searchsorted(updated, moment)
    ranges = steps.of(label.where(lambda name: name != "" and not name.startswith(_NO_RANGES)))
    around, at = _innermost(start, *ranges), near.clip(min=0)
    return _Placed(
        mine,
        near,
        around[at],
        updates,
        updates == np.searchsorted(updated, start[at]),
        (near >= 0) & (moment < end[at]),
    )


def _innermost(moments: Int64, start: Int64, end: Int64) -> Int64:
    """For each moment the range around it that began last, as a number; -1 for none."""
    found: Int64 = np.full(moments.size, -1, np.int64)
    bounds = np.searchsorted(moments, start), np.searchsorted(moments, end)
    for number, (first, last) in enumerate(zip(*(its.tolist() for its in bounds), strict=True)):
        found[first:last] = number
    return found
